"""Where data files lie: the folder of this library's own data, and the folders in which others
keep theirs, so that nothing is fetched twice."""

import os
from pathlib import Path

from mbrl.data.cards import Card, Tier, cards_dir
from mbrl.errors import MissingDataError

HOMES = {  # environment variables and default folders of the projects the files come from
    "d4rl": (("D4RL_DATASET_DIR",), "~/.d4rl/datasets"),
    "neorl2": ((), "~/.neorl2/datasets"),
    "ogbench": ((), "~/.ogbench/data"),
    "minari": (("MINARI_DATASETS_PATH",), "~/.minari/datasets"),
}


def data_home() -> Path:
    """Folder of fetched and collected data: $LONGREACH_DATA, by default ~/.longreach/data."""
    return Path(os.environ.get("LONGREACH_DATA") or "~/.longreach/data").expanduser()


def homes(family: str) -> list[Path]:
    """Folders that may hold files of `family`, in the order in which they are searched."""
    variables, default = HOMES.get(family, ((), ""))
    folders = [data_home() / family]
    folders += [Path(os.environ[v]).expanduser() for v in variables if os.environ.get(v)]
    if default:
        folders.append(Path(default).expanduser())
    return folders


def local_target(family: str, tier: str) -> Path:
    """Where `collect` writes a local tier."""
    return data_home() / family / f"{tier}.npz"


def local_file(card: Card, tier: Tier) -> Path:
    """The file of a local tier: the one collected on this machine, else the shipped one."""
    shipped = cards_dir() / "local" / card.family / f"{tier.name}.npz"
    for path in (local_target(card.family, tier.name), shipped):
        if path.is_file():
            return path
    raise MissingDataError(
        f"{card.family}/{tier.name} is not on this machine. Record it with\n"
        f"    python -m experiments collect {card.family} --tiers {tier.name}\n"
        f"which writes {local_target(card.family, tier.name)}"
    )


def find_file(family: str, file: str) -> Path | None:
    """A file of `family` that is already here, by its path below a home or its bare name."""
    for folder in homes(family):
        for path in (folder / file, folder / Path(file).name):
            if path.is_file():
                return path
    return None
