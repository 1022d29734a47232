"""Formulas: of recipes some literally and all without a gap, of options with their numbers."""

import dataclasses
from typing import Any, get_args, get_type_hints

import pytest

from mbrl.policy_gradient import RECIPES
from mbrl.policy_gradient.axes.credit import GAE
from mbrl.policy_gradient.axes.option import Option, shown
from mbrl.policy_gradient.axes.regulariser import ESTIMATORS
from mbrl.policy_gradient.axes.rejection import LEVELS
from mbrl.policy_gradient.axes.reward import StepSignal, TaskReward
from mbrl.policy_gradient.explain import explain

GRPO = """
  R = sum of r over the sequence, r = the task's reward
  A = (R - mean R) / (std R + 0.0001), statistics over sequences that share prompt
""".strip("\n")
FORMULAS = {
    "grpo": (
        GRPO,
        """
  rho = pi / pi_old
  gain = min(rho A, clip(rho, 1 - 0.2, 1 + 0.2) A)
  P1 = 0.04 (e^-d + d - 1), d = log pi - log pi_reference
  L = -M(gain) + M(P1)
  M = mean over sequences of the mean over their steps
""",
    ),
    "dapo": (
        GRPO + "\n  w = [0 for sequences that share prompt if all earned the same, else 1] "
        "[0 for sequences that were cut off, else 1]",
        """
  rho = pi / pi_old
  gain = min(rho A, clip(rho, 1 - 0.2, 1 + 0.28) A)
  L = -M(w gain)
  M = mean over all steps
""",
    ),
    "dr_grpo": (
        """
  R = sum of r over the sequence, r = the task's reward
  A = R - mean R, statistics over sequences that share prompt
""",
        """
  rho = pi / pi_old
  gain = min(rho A, clip(rho, 1 - 0.2, 1 + 0.2) A)
  L = -M(gain)
  M = mean over sequences of the sum over their steps, over 1024
""",
    ),
    "ppo": (
        """
  R = sum_k (0.99 * 0.95)^k delta_(t+k), delta = r + 0.99 V(next) - V, r = the task's reward
  A = R
  A <- (A - mean A) / (std A + 1e-08) over the batch's steps
""",
        """
  rho = pi / pi_old
  gain = min(rho A, clip(rho, 1 - 0.2, 1 + 0.2) A)
  L = -M(gain)
  M = mean over all steps
""",
    ),
    "rloo": (
        """
  R = sum of r over the sequence, r = the task's reward
  A = R - mean R of the others, statistics over sequences that share prompt
""",
        """
  gain = A log pi
  L = -M(gain)
  M = mean over sequences of the sum over their steps
""",
    ),
    "gspo": (
        GRPO,
        """
  rho = geometric mean of pi / pi_old over the sequence
  gain = min(rho A, clip(rho, 1 - 0.0003, 1 + 0.0004) A)
  L = -M(gain)
  M = mean over sequences of the mean over their steps
""",
    ),
}
# Settings that are one of a few words.
WORDS: dict[str, tuple[str, ...]] = {
    "alone": ("drop", "keep", "one", "zero"),
    "estimator": tuple(ESTIMATORS),
    "form": ("count", "hinge"),
    "kind": ("reverse", "forward"),
    "level": LEVELS,
    "shape": ("one", "two", "ring"),
    "which": ("all", "right", "wrong"),
}
REQUIRED: dict[str, Any] = {
    "name": "signal",
    "inner": TaskReward(),
    "parts": ((TaskReward(), 0.5), (StepSignal("other"), 2.0)),
    "credit": GAE(),
    "worth": StepSignal("gain"),
    "longest": 9,
    "buffer": 4,
}
# What a setting needs beside it to count.
BESIDE = {
    ("ZeroVariance", "right"): {"which": "right"},
    ("MaskedWeight", "outer"): {"shape": "ring"},
    # The high end of a range is above its low end.
    **{(k, "high"): {"low": 0.125} for k in ("ScoreVariance", "EntropyBand", "RatioBand")},
}


def kinds(parent: type) -> list[type]:
    return [k for child in parent.__subclasses__() for k in (child, *kinds(child))]


CONCRETE = [
    kind
    for kind in kinds(Option)
    if kind.__module__.startswith("mbrl.") and not getattr(kind, "__abstractmethods__", None)
]


def made(kind: type, /, **settings: Any) -> Any:
    needed = {
        f.name: REQUIRED[f.name]
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING
    }
    return kind(**(needed | settings))


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_formulas_of_well_known_recipes(name: str) -> None:
    advantage, loss = (text.strip("\n") for text in FORMULAS[name])
    page = explain(RECIPES[name])
    assert f"advantage, once a batch\n{advantage}\n\nloss, at every update\n{loss}\n" in page


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_is_explained_without_a_gap(name: str) -> None:
    recipe, page = RECIPES[name], explain(RECIPES[name])
    for text in (recipe.title, recipe.arxiv or "", recipe.mark, *recipe.needs):
        assert text in page
    for text in (*recipe.assumptions, *recipe.differences):
        assert text in page
    formulas = page.split("advantage, once a batch")[1].split("\n\nneeds\n")[0]
    assert not any(gap in formulas for gap in ("{", "}", "None", "  \n"))
    assert all(f"\n  {left} = " in page for left in ("gain", "L", "M"))


@pytest.mark.parametrize("kind", CONCRETE, ids=lambda k: k.__name__)
def test_a_formula_has_the_values_of_its_settings(kind: type) -> None:
    hints = get_type_hints(kind)
    plain = made(kind)
    assert "{" not in plain.formula() and "None" not in plain.formula()
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        types = {hint, *get_args(hint)}
        beside = BESIDE.get((kind.__name__, field.name), {})
        if field.name in WORDS and hint is str:
            continue
        if bool in types:
            changed = made(kind, **{field.name: not getattr(plain, field.name)})
            assert changed.formula() != plain.formula(), field.name
            continue
        value: Any = None
        if float in types and not isinstance(getattr(plain, field.name), tuple):
            value = 0.375
        elif int in types:
            value = 7
        elif str in types:
            value = ("alpha", "omega") if ... in types else "omega"
        elif isinstance(getattr(plain, field.name), tuple):
            value = tuple(0.375 + i for i, _ in enumerate(getattr(plain, field.name)))
        if value is None or field.name == "parts":
            continue
        formula = made(kind, **beside, **{field.name: value}).formula()
        for one in value if isinstance(value, tuple) else (value,):
            assert shown(one) in formula, (field.name, formula)


@pytest.mark.parametrize("kind", CONCRETE, ids=lambda k: k.__name__)
def test_every_choice_of_words_has_a_formula_of_its_own(kind: type) -> None:
    for field in dataclasses.fields(kind):
        if field.name not in WORDS or get_type_hints(kind)[field.name] is not str:
            continue
        found = set()
        words = WORDS[field.name]
        if field.name == "alone":
            words = ("drop", "keep") if made(kind).alone == "drop" else ("zero", "one")
        for word in words:
            found.add(made(kind, **{field.name: word}).formula())
        assert len(found) == len(words)


def test_parts_of_a_mixture_are_weighted() -> None:
    mixture = next(k for k in CONCRETE if k.__name__ == "Mixture")
    assert made(mixture).formula() == "0.5 (the task's reward) + 2 (other)"
