"""Losses and gradients against recorded ones of code that this project did not write."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mbrl.policy_gradient import RECIPES, Estimate, Recipe, Term, estimate, loss
from mbrl.policy_gradient.axes import aggregation, modulation, selection
from mbrl.policy_gradient.axes.baseline import LeastVariance
from mbrl.policy_gradient.axes.gate import CovarianceClip, CovariancePenalty, Discriminative
from mbrl.policy_gradient.axes.scale import Std
from tests.mbrl.policy_gradient import cases
from tests.mbrl.policy_gradient.references.batches import batch, given

RECORDED: dict[str, dict[str, Any]] = {
    source: json.loads((Path(__file__).parent.parent / "references" / f"{source}.json").read_text())
    for source in ("verl", "trl", "authors")
}
# What a small batch needs, or where the code is another of the paper's forms.
WHITE = (modulation.Whiten(eps=1e-8, steps=True),)  # over all tokens
CHANGED: dict[str, dict[str, Any]] = {
    # shares at which a small batch has such steps; verl draws them from its own generator, so that
    # all are chosen
    "clip_cov": {"gate": CovarianceClip(share=1.0, least=0.1)},
    "kl_cov": {"gate": CovariancePenalty(share=0.1)},
    "gdpo": {"modulation": WHITE},
    "gdpo_conditioned": {"modulation": WHITE},
    "drpo_decoupled": {"gate": Discriminative(longest=float(cases.STEPS))},
    # differences are not held in the authors' code
    "openclaw_rl": {"modulation": (modulation.TeacherAdvantage(limit=1e9),)},
    "red_drop": {"aggregation": aggregation.TokenMean()},
    "red_weight": {"aggregation": aggregation.TokenMean()},
    # the population's deviation, with nothing added to it
    "vcpo": {"terms": (Term(baseline=LeastVariance(), scale=Std(1e-12, correction=0)),)},
    "grpo_roc": {"sampling": (selection.ResampleOnCorrect(fewest=1),)},
}

# Verified recipes that no code is recorded for, and why.
WITHOUT = {
    "dr_kernel": "recorded in parts: trloo, and the rejection of geometric_rejection_grpo",
}


def as_recorded(name: str) -> Recipe:
    return dataclasses.replace(RECIPES[name], **CHANGED.get(name, {}))


def agrees(
    recipe: Recipe,
    kind: str,
    seed: int,
    wanted: dict[str, Any],
    tolerance: float = 1e-6,
    advantages: bool = True,
) -> None:
    t, now, entropy = batch(kind, seed)
    found = estimate(recipe, t) if advantages else Estimate(given(t), t.mask.double())
    value, _ = loss(recipe, now, t, found, entropy)
    gradient = torch.autograd.grad(value, now)[0]
    if wanted["loss"] is not None:
        assert value.item() == pytest.approx(wanted["loss"], rel=tolerance, abs=1e-9)
    expected = torch.tensor(wanted["gradient"], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=tolerance, atol=1e-9)


@pytest.mark.parametrize(
    ("source", "name"), [(s, n) for s in ("verl", "trl") for n in sorted(RECORDED[s]["recipes"])]
)
def test_loss_and_gradient_are_those_of(source: str, name: str) -> None:
    recipe, found = as_recorded(name), RECORDED[source]
    tolerance = 1e-4 if (source, name) == ("trl", "sapo_soft_gate") else 1e-6  # float32 constants
    for seed, wanted in zip(found["seeds"], found["recipes"][name], strict=True):
        agrees(recipe, "all", seed, wanted, tolerance)


@pytest.mark.parametrize("name", sorted(RECORDED["authors"]["recipes"]))
def test_loss_and_gradient_are_those_of_the_authors(name: str) -> None:
    recipe, found = as_recorded(name), RECORDED["authors"]
    entry = found["recipes"][name]
    for seed, wanted in zip(found["seeds"], entry["records"], strict=True):
        single = "trinity" in entry["source"] or name in ("hgpo", "a2c", "nlpo")  # float32 there
        tolerance = 1e-5 if single else 1e-6
        agrees(recipe, entry["batch"], seed, wanted, tolerance, not entry["given"])


def test_every_verified_recipe_is_recorded_or_says_why_not() -> None:
    recorded = {name for found in RECORDED.values() for name in found["recipes"]}
    verified = {name for name, recipe in RECIPES.items() if recipe.mark == "verified"}
    assert verified - recorded == set(WITHOUT)
