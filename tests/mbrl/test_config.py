"""Settings: ranges of numbers, choices, and the way to plain dictionaries and back."""

import math
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from algorithms import ALGORITHMS, IQLConfig, PolicyGradientConfig, PROPSConfig
from algorithms.language.imitation import ImitationConfig
from algorithms.language.learner import ModelConfig
from algorithms.language.models.transformer import TransformerConfig
from algorithms.language.sampling.tokens import Sampling
from algorithms.language.settings import LanguageConfig
from experiments.__main__ import main
from experiments.settings import RunSettings
from mbrl import config as configs
from mbrl.config import Count, Discount, Finite, Fraction, Positive, Range, Rate, Settings
from mbrl.errors import ConfigError
from mbrl.policy_gradient.axes.baseline import SoftMean
from mbrl.policy_gradient.axes.credit import GAE
from mbrl.policy_gradient.axes.gate import Clip
from mbrl.policy_gradient.axes.option import Option
from mbrl.policy_gradient.axes.regulariser import KL
from world_models.samplers import DEIS


def every(kind: type) -> list[type]:
    return [*kind.__subclasses__(), *(k for part in kind.__subclasses__() for k in every(part))]


OPTIONS = [kind for kind in every(Option) if kind.__module__.startswith("mbrl.")]


@dataclass(frozen=True)
class Inner(Settings):
    width: Count = 8
    kind: Literal["wide", "deep"] = "wide"


@dataclass(frozen=True)
class Outer(Settings):
    inner: Inner = field(default_factory=Inner)
    hidden: tuple[Count, ...] = (8, 8)
    pair: tuple[Count, Discount] = (1, 0.5)
    limit: Positive | None = None
    gamma: Discount = 0.9
    tau: Rate = 0.5
    share: Fraction = 0.5
    shift: Finite = 0.0
    order: Annotated[int, Range(int, "[1, 3]")] = 2
    reach: Annotated[float, Range(float, "[0, inf]")] = 1.0


@dataclass(frozen=True)
class Further(Outer):
    steps: Count = 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gamma": 1.0}, r"^gamma is 1\.0, it must lie in \[0, 1\)$"),
        ({"gamma": -0.1}, r"^gamma is -0\.1, it must lie in \[0, 1\)$"),
        ({"gamma": math.nan}, r"^gamma is nan, it must lie in \[0, 1\)$"),
        ({"tau": 0.0}, r"^tau is 0\.0, it must lie in \(0, 1\]$"),
        ({"share": 1}, r"^share is 1, it must lie in \(0, 1\)$"),
        ({"limit": 0.0}, r"^limit is 0\.0, it must be above 0$"),
        ({"limit": math.inf}, r"^limit is inf, it must be finite$"),
        ({"shift": -math.inf}, r"^shift is -inf, it must be finite$"),
        ({"order": 4}, r"^order is 4, it must lie in \[1, 3\]$"),
        ({"pair": (1,)}, r"^pair is \(1,\), it must have 2 entries$"),
        ({"pair": (1, 0.5, 0.5)}, r"^pair is \(1, 0.5, 0.5\), it must have 2 entries$"),
        ({"hidden": 8}, r"^hidden is 8; give a list of them$"),
        ({"reach": math.nan}, r"^reach is nan, it must lie in \[0, inf\]$"),
        ({"hidden": (8, 0)}, r"^hidden is \(8, 0\), each must be at least 1$"),
        ({"pair": (0, 0.5)}, r"^pair is \(0, 0\.5\), each must be at least 1$"),
        ({"pair": (1, 1.0)}, r"^pair is \(1, 1\.0\), each must lie in \[0, 1\)$"),
        ({"gamma": None}, r"^gamma is None, it must lie in \[0, 1\)$"),
        ({"gamma": "0.9"}, r"^gamma is '0\.9', it must be a number$"),
        ({"order": 1.5}, r"^order is 1\.5, it must be a whole number$"),
        ({"hidden": (8, 2.0)}, r"^hidden is \(8, 2\.0\), it must be a whole number$"),
    ],
)
def test_a_number_outside_its_range_is_named(given: dict[str, Any], message: str) -> None:
    for kind in (Outer, Further):
        with pytest.raises(ConfigError, match=message):
            kind(**given)


def test_a_switch_and_widths_of_another_kind_are_named() -> None:
    for config, words in (
        ({"normalise_obs": "no"}, "normalise_obs is 'no'; allowed: True, False"),
        ({"normalise_obs": 1}, "normalise_obs is 1"),
        ({"hidden": 64}, r"hidden is 64; give a list of them: \[64\]"),
        ({"batch_size": 2.5}, "batch_size is 2.5, it must be a whole number"),
    ):
        with pytest.raises(ConfigError, match=words):
            IQLConfig(**config)  # type: ignore[arg-type]


def test_ends_within_the_range_are_taken() -> None:
    made = Further(Inner(1), (), (1, 0.0), None, 0, 1, 1e-9, -1e9, order=3, reach=math.inf, steps=1)
    assert made.hidden == () and made.limit is None and Outer(order=1, limit=1e-9).limit == 1e-9


def test_values_of_a_dictionary_are_checked_by_name() -> None:
    hints = {"steps": Count, "kind": Literal["wide", "deep"], "counts": tuple[Count, ...]}
    values = {"steps": 1, "kind": "deep", "counts": [1, 2], "more": -1}
    configs.check(values, hints)
    with pytest.raises(ConfigError, match="steps is 0, it must be at least 1"):
        configs.check(values | {"steps": 0}, hints)
    with pytest.raises(ConfigError, match="unknown kind 'dep': did you mean 'deep'"):
        configs.check(values | {"kind": "dep"}, hints)
    with pytest.raises(ConfigError, match=r"counts is \[1, 0\], each must be at least 1"):
        configs.check(values | {"counts": [1, 0]}, hints)


def test_a_range_is_written_as_one() -> None:
    for text in ("0, 1", "[0; 1]", "[0, 1", "{0, 1}"):
        with pytest.raises(ValueError, match="is no range"):
            Range(float, text)


def test_a_choice_is_one_of_its_names() -> None:
    with pytest.raises(ConfigError, match=r"unknown Inner.kind 'wid': did you mean 'wide'"):
        Inner(kind="wid")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"unknown DEIS.variable 'rhoo': did you mean 'rho'"):
        DEIS(variable="rhoo")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"unknown DEIS.start '3': .* Known: lower_order"):
        DEIS(start=3)  # type: ignore[arg-type]


def test_settings_come_back_from_a_dictionary() -> None:
    made = Further(Inner(3, "deep"), (4,), limit=2.0, steps=5)
    assert configs.from_dict(Further, configs.to_dict(made)) == made
    assert configs.from_dict(Outer, {"limit": 2}).limit == 2.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"inner": {"width": 0}}, "width is 0, it must be at least 1"),
        ({"inner": {"width": 1.5}}, r"Inner.width is 1\.5 \(float\), expected int$"),
        ({"inner": {"width": True}}, r"Inner.width is True \(bool\), expected int$"),
        ({"inner": {"kind": "tall"}}, "Inner.kind is 'tall', allowed: 'wide', 'deep'"),
        ({"limit": "2"}, r"Outer.limit is '2' \(str\), expected float or None$"),
        ({"gamma": None}, "Outer.gamma is None, which is not allowed; expected float$"),
        ({"hidden": [8, 0]}, "each must be at least 1"),
        ({"depth": 1}, "unknown setting of Outer 'depth'"),
    ],
)
def test_a_dictionary_with_a_wrong_value_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configs.from_dict(Outer, given)


def test_help_prints_the_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "ravl", "pendulum/medium", "--help"])
    text = capsys.readouterr().out
    for line in (
        "--steps {None}|INT>=1",
        "--seed INT>=0",
        "--learner.gamma 0<=FLOAT<1",
        "--learner.tau 0<FLOAT<=1",
        "--learner.actor-lr FLOAT>0",
        "--learner.hidden [INT>=1 [INT>=1 ...]]",
        "--learner.target-entropy {None}|FLOAT",
    ):
        assert line in text


def numbers_without_range(kind: type) -> list[str]:
    """The numeric settings of a config and of those within it that have no range."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found = []
    for entry in fields(kind):
        hint = hints[entry.name]
        if is_dataclass(hint):
            assert isinstance(hint, type)
            found += numbers_without_range(hint)
        types = [hint, *typing.get_args(hint)]
        if any(t in (int, float) for t in types if typing.get_origin(hint) is not Annotated):
            found.append(f"{kind.__name__}.{entry.name}")
    return found


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_numeric_setting_has_a_range(name: str) -> None:
    assert numbers_without_range(ALGORITHMS[name][1]) == []


def test_every_numeric_setting_of_a_run_has_a_range() -> None:
    assert numbers_without_range(RunSettings) == []


PARTS = [ModelConfig, Sampling, TransformerConfig, LanguageConfig, ImitationConfig, *OPTIONS]


@pytest.mark.parametrize("kind", PARTS)
def test_every_numeric_setting_of_the_language_wing_has_a_range(kind: type) -> None:
    assert numbers_without_range(kind) == []


BAD: dict[str, tuple[str, ...]] = {  # what a setting's name ends in, and values it cannot have
    "gamma": ("2", "nan", "-0.1"),
    "tau": ("2", "0", "nan"),
    "batch_size": ("0", "-1"),
    "learning_rate": ("-1", "nan", "inf"),
    "actor_lr": ("-1",),
    "critic_lr": ("-1",),
    "hidden": ("0", ""),
    "clip_norm": ("0", "nan"),
}


def bad_options(kind: type, prefix: str = "--") -> Iterator[tuple[tuple[type, str], list[str]]]:
    """Command-line options that set a number of this config out of its range, each with the class
    and the field where the range stands."""
    hints = typing.get_type_hints(kind)
    for entry in fields(kind):
        option = prefix + entry.name.replace("_", "-")
        if is_dataclass(hints[entry.name]):
            yield from bad_options(hints[entry.name], option + ".")
        for value in BAD.get(entry.name, ()):
            # No hidden layer is a linear policy, which these two can have.
            if value or kind not in (PolicyGradientConfig, PROPSConfig):
                home = next(
                    c for c in kind.__mro__ if entry.name in vars(c).get("__annotations__", ())
                )
                yield (home, entry.name), [option, *value.split()]


def shared_once() -> dict[str, list[list[str]]]:
    """By algorithm: one such option of every setting that no algorithm before has."""
    seen: set[tuple[type, str]] = set()
    found: dict[str, list[list[str]]] = {}
    for name, (_, config) in sorted(ALGORITHMS.items()):
        for place, option in bad_options(config):
            if place not in seen:
                seen.add(place)
                found.setdefault(name, []).append(option)
    return found


def refused(name: str, options: list[list[str]], capsys: Any, tmp_path: Path) -> None:
    run = ["run", name, "pendulum/medium", "--out", str(tmp_path / "never")]
    for bad in options:
        try:
            status: object = main([*run, *bad])
        except SystemExit as stopped:  # of the parser
            status = stopped.code
        text = re.sub(r"[\s│]+", " ", "".join(capsys.readouterr()))
        assert status not in (0, None) and "Traceback" not in text, bad
        setting = bad[0].rsplit(".", 1)[-1].lstrip("-")
        assert setting in text or setting.replace("-", "_") in text, (bad, text)
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(("name", "options"), shared_once().items())
def test_the_command_refuses_an_impossible_value_of_every_setting(
    name: str, options: list[list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    refused(name, options, capsys, tmp_path)


def test_the_command_refuses_an_impossible_setting_of_any_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    refused("bc", [["--checkpoint-seconds", "nan"]], capsys, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_command_refuses_impossible_settings_by_name(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = [option for _, option in bad_options(ALGORITHMS[name][1])]
    refused(name, [*options, ["--checkpoint-seconds", "nan"]], capsys, tmp_path)


def test_parts_of_recipes_refuse_numbers_outside_their_range() -> None:
    for make in (
        lambda: Clip(low=-1.0),
        lambda: Clip(high=math.nan),
        lambda: KL(weight=math.inf),
        lambda: GAE(lam=2.0),
        lambda: SoftMean(temperature=0.0),
    ):
        with pytest.raises(ConfigError, match="it must"):
            make()
