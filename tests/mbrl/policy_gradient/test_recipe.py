"""Recipes as objects: what is refused, what is needed, numbers at their ends, compilation."""

import dataclasses

import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.policy_gradient import RECIPES, Recipe, Term, estimate, loss, recipe
from mbrl.policy_gradient import baselines as b
from mbrl.policy_gradient.gates import Clip
from mbrl.policy_gradient.modulation import Whiten
from mbrl.policy_gradient.ratios import Geometric
from mbrl.policy_gradient.selection import NonZero
from tests.mbrl.policy_gradient import cases


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="dr_grpo"):
        recipe("dr_grpoo")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "Bad Name"}, "lower case"),
        ({"terms": ()}, "at least one"),
        ({"mark": "reconstructed"}, "lists its assumptions"),
        ({"ratio": Geometric()}, "geometric means over sequences move by"),
        ({"gate": Clip(3e-4, 4e-4)}, "ratios of single steps take"),
        (
            {"terms": (Term(baseline=b.LeastVariance()),), "modulation": (Whiten(),)},
            "least variance",
        ),
        (
            {"terms": (Term(baseline=b.LeaveOneOut()),), "selection": (NonZero(),)},
            "belongs to the median",
        ),
        (
            {"terms": (Term(baseline=b.Recorded("value"), key=("prompt", "state")),)},
            "two baselines",
        ),
    ],
)
def test_contradictions_are_refused_at_construction(changes: dict, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Recipe(**{"name": "mine", "title": "Mine"} | changes)


def test_what_is_missing_is_named_before_anything_is_computed() -> None:
    t, log_prob, _ = cases.batch(0)
    bare = dataclasses.replace(t, log_probs={"old": t.log_probs["old"]}, signals={})
    with pytest.raises(ConfigError, match=r"log_probs\.behaviour, signals\.gradient_norm_squared"):
        estimate(RECIPES["vcpo"], bare)
    with pytest.raises(ConfigError, match="grouping key 'prompt'"):
        estimate(RECIPES["grpo"], dataclasses.replace(t, groups={}))
    found = estimate(RECIPES["epo"], t)
    with pytest.raises(ConfigError, match="give `entropy`"):
        loss(RECIPES["epo"], log_prob, t, found)
    with pytest.raises(ConfigError, match="one number for every step"):
        loss(RECIPES["grpo"], log_prob[:, :2], t, estimate(RECIPES["grpo"], t))
    with pytest.raises(ConfigError, match=r"entropy is \(\d+, 1\), the trajectories are"):
        loss(RECIPES["epo"], log_prob, t, found, t.entropy[:, :1])
    narrow = dataclasses.replace(t, log_probs=t.log_probs | {"old": t.log_probs["old"][:, :1]})
    with pytest.raises(ConfigError, match=r"log_probs.old is \(\d+, 1\), the trajectories are"):
        estimate(RECIPES["grpo"], narrow)
    short = dataclasses.replace(t, signals=t.signals | {"value": t.reward[0]})
    with pytest.raises(ConfigError, match=r"signals.value is \(\d+,\)"):
        estimate(RECIPES["grpo"], short)


def single(t: cases.Trajectories) -> cases.Trajectories:
    """The batch in float32."""
    values = {}
    for field in dataclasses.fields(t):
        value = getattr(t, field.name)
        if isinstance(value, dict):
            values[field.name] = {
                k: v.float() if v.is_floating_point() else v for k, v in value.items()
            }
        elif value is not None:
            values[field.name] = value.float() if value.is_floating_point() else value
    return cases.Trajectories(**values)


@pytest.mark.parametrize("name", sorted(RECIPES))
@pytest.mark.parametrize("shift", [-50.0, 50.0])
def test_float32_stays_finite_at_log_ratios_of_fifty(name: str, shift: float) -> None:
    """Every step's log-ratio is the shift, between any two policies."""
    t, log_prob, entropy = cases.batch(0)
    for k in t.log_probs:
        t.log_probs[k] = log_prob.detach() - shift
    t = single(t)
    now = log_prob.detach().float().requires_grad_()
    value, metrics = loss(RECIPES[name], now, t, estimate(RECIPES[name], t), entropy.float())
    assert torch.isfinite(value)
    if value.requires_grad:
        gradient = torch.autograd.grad(value, now, allow_unused=True, materialize_grads=True)[0]
        assert torch.isfinite(gradient).all()
    assert all(torch.isfinite(m) for m in metrics.values())


@pytest.mark.parametrize("name", ["grpo", "gspo", "cispo", "topr", "clip_cov", "vcpo"])
def test_the_loss_traces_into_one_graph(name: str) -> None:
    t, log_prob, entropy = cases.batch(0)
    found = estimate(RECIPES[name], t)
    eager, _ = loss(RECIPES[name], log_prob, t, found, entropy)

    def run(log_prob: torch.Tensor) -> torch.Tensor:
        return loss(RECIPES[name], log_prob, t, found, entropy)[0]

    traced = torch.compile(run, fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(log_prob), eager)


def test_options_tell_what_is_not_the_default() -> None:
    assert str(Clip()) == "Clip" and str(Clip(high=0.28)) == "Clip(high=0.28)"
