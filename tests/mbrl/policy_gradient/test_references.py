"""Losses and gradients against recorded ones of code that this project did not write."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from mbrl.policy_gradient import RECIPES, Recipe, estimate, loss
from mbrl.policy_gradient.masks import CovarianceClip, CovariancePenalty
from tests.mbrl.policy_gradient import cases
from tests.mbrl.policy_gradient.references.record_verl import ALONE

RECORDED = {
    source: json.loads((Path(__file__).parent / "references" / f"{source}.json").read_text())
    for source in ("verl", "trl")
}
# Recorded with shares at which a small batch has such steps; verl draws them from its own
# generator, so that all are chosen.
CHANGED = {
    "clip_cov": CovarianceClip(share=1.0, least=0.1),
    "kl_cov": CovariancePenalty(share=0.1),
}


def as_recorded(name: str) -> Recipe:
    return dataclasses.replace(RECIPES[name], gate=CHANGED.get(name, RECIPES[name].gate))


@pytest.mark.parametrize(
    ("source", "name"), [(s, n) for s, found in RECORDED.items() for n in sorted(found["recipes"])]
)
def test_loss_and_gradient_are_those_of(source: str, name: str) -> None:
    recipe, found = as_recorded(name), RECORDED[source]
    tolerance = 1e-4 if (source, name) == ("trl", "sapo_soft_gate") else 1e-6  # float32 constants
    for seed, wanted in zip(found["seeds"], found["recipes"][name], strict=True):
        t, log_prob, _ = cases.batch(seed)
        rows = torch.nonzero(t.groups["prompt"][:, 0] != ALONE)[:, 0]
        t, now = t.select(rows), log_prob.detach()[rows].requires_grad_()
        value, _ = loss(recipe, now, t, estimate(recipe, t))
        gradient = torch.autograd.grad(value, now)[0]
        assert value.item() == pytest.approx(wanted["loss"], rel=tolerance, abs=1e-9)
        expected = torch.tensor(wanted["gradient"], dtype=torch.float64)
        torch.testing.assert_close(gradient, expected, rtol=tolerance, atol=1e-9)
