"""What every reader of a named dataset returns, and the two things they all do: find the file and
compare its checksum."""

from dataclasses import dataclass, replace
from pathlib import Path

from mbrl.data.cards import Card, Checksum, Tier
from mbrl.data.columns import Columns, Options
from mbrl.data.download import download
from mbrl.data.issues import Finding, error, note
from mbrl.data.locate import data_home, find_file
from mbrl.data.readers.files import file_hash
from mbrl.data.task_spec import bound, given_spec
from mbrl.errors import MissingDataError
from mbrl.types import Provenance, Spec


@dataclass(frozen=True)
class Source:
    """Columns as read, not yet verified, with the spec that is known (None: infer it)."""

    columns: Columns
    spec: Spec | None
    provenance: Provenance
    options: Options
    findings: tuple[Finding, ...] = ()


def obtain(card: Card, tier: Tier, file: str, options: Options) -> Path:
    """The path of `file` (relative to the card's sources), fetched if it is nowhere here."""
    path = find_file(card.family, file)
    if path is not None:
        return path
    target = data_home() / card.family / file
    urls = card.addresses(tier, file)
    if not options.download:
        addresses = "\n".join(f"    {url}" for url in urls)
        raise MissingDataError(
            f"{card.family}/{tier.name} is not on this machine and download=False. Fetch\n"
            f"{addresses}\nto {target}, or run python -m experiments data fetch "
            f"{card.family}/{tier.name}"
        )
    return download(urls, target, checksum=card.checksum(tier, file), progress=options.progress)


def card_spec(card: Card, tier: Tier, options: Options) -> Spec:
    """The caller's spec, else the card's with the caller's action bounds where given."""
    given = given_spec(options)
    if given is not None:
        return given
    spec = card.spec(tier)
    low = bound(options.action_low, spec.action_dim) or spec.action_low
    high = bound(options.action_high, spec.action_dim) or spec.action_high
    return replace(spec, action_low=low, action_high=high)


def card_provenance(card: Card, tier: Tier, sha256: str) -> Provenance:
    return Provenance(
        card=f"{card.family}/{tier.name}",
        version=card.recipe_version,
        sha256=sha256,
        licence=card.licence,
    )


def checksum_findings(
    path: Path, wanted: Checksum | None, sha256: str, strict: bool
) -> tuple[Finding, ...]:
    """An error (`strict`) or a note where the published checksum of `path` differs."""
    if wanted is None:
        return ()
    actual = sha256 if wanted.kind == "sha256" else file_hash(path, wanted.kind)
    if actual == wanted.value:
        return ()
    text = f"{path}: {wanted.kind} is {actual}, published is {wanted.value}"
    if not strict:
        return (note(f"{text}; the file was recorded on another machine or version"),)
    return (
        error(
            f"{text}. The file is damaged or another version: delete it and fetch it again, or "
            "say verify=False to use it as it is"
        ),
    )
