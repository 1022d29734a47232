"""Recipes as objects: what is refused, what is needed, numbers at their ends, compilation."""

import dataclasses
import math

import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.policy_gradient import RECIPES, Recipe, Term, estimate, loss, recipe
from mbrl.policy_gradient.axes import baseline as b
from mbrl.policy_gradient.axes.credit import VTrace
from mbrl.policy_gradient.axes.gate import Clip, CovarianceClip, Hybrid, MaskedWeight
from mbrl.policy_gradient.axes.gate_adaptive import EntropyClip
from mbrl.policy_gradient.axes.modulation import StepEntropy, Whiten
from mbrl.policy_gradient.axes.ratio import GeometricRatio
from mbrl.policy_gradient.axes.selection import DropMedian, ZeroVariance
from mbrl.policy_gradient.groups import numbered
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
        ({"ratio": GeometricRatio()}, "geometric means over sequences move by"),
        (
            {"ratio": GeometricRatio(), "gate": MaskedWeight()},
            "geometric means over sequences move by",
        ),
        (
            {"ratio": GeometricRatio(), "gate": EntropyClip()},
            "geometric means over sequences move by",
        ),
        (
            {"ratio": GeometricRatio(), "gate": CovarianceClip()},
            "geometric means over sequences move",
        ),
        ({"gate": Hybrid(whole=Clip())}, "geometric means over sequences move by"),
        ({"gate": Hybrid(step=Clip(3e-4, 4e-4))}, "ratios of single steps take"),
        ({"gate": Clip(3e-4, 4e-4)}, "ratios of single steps take"),
        (
            {"terms": (Term(baseline=b.TokenOptimal()),), "modulation": (StepEntropy(),)},
            "least variance",
        ),
        (
            {"terms": (Term(baseline=b.LeastVariance()),), "modulation": (Whiten(),)},
            "least variance",
        ),
        (
            {"terms": (Term(baseline=b.LeaveOneOut()),), "selection": (DropMedian(),)},
            "belongs to the median",
        ),
        (
            {"terms": (Term(baseline=b.SignalBaseline("value"), key=("prompt", "state")),)},
            "two baselines",
        ),
        (
            {"terms": (Term(baseline=b.SignalBaseline("utterance_v"), key=("prompt", "state")),)},
            "two baselines",
        ),
        ({"terms": (Term(credit=VTrace(), key=("prompt", "state")),)}, "two baselines"),
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
    with pytest.raises(ValueError, match="shapes do not fit together"):
        loss(RECIPES["grpo"], log_prob[:, :2], t, estimate(RECIPES["grpo"], t))
    with pytest.raises(ValueError, match=r"entropy \[\d+, 1\] for \[B, T\]"):
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
    traced_like_eager(name)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_estimate_and_loss_traces_into_one_graph(name: str) -> None:
    traced_like_eager(name)
    t, _, _ = cases.batch(0)
    traced = torch.compile(lambda t: estimate(RECIPES[name], t), fullgraph=True, backend="eager")
    found, expected = traced(t), estimate(RECIPES[name], t)
    torch.testing.assert_close(found.advantage, expected.advantage)
    torch.testing.assert_close(found.weight, expected.weight)


def traced_like_eager(name: str) -> None:
    torch.compiler.reset()  # a recipe is a recompilation, and there may be few of them
    t, log_prob, entropy = cases.batch(0)
    found = estimate(RECIPES[name], t)
    eager, _ = loss(RECIPES[name], log_prob, t, found, entropy)

    def run(log_prob: torch.Tensor) -> torch.Tensor:
        return loss(RECIPES[name], log_prob, t, found, entropy)[0]

    traced = torch.compile(run, fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(log_prob), eager)


def test_effective_samples_are_those_of_whole_sequences() -> None:
    """Whatever the gate sees: a product stands at every step of its sequence."""
    t, log_prob, entropy = cases.batch(0)
    log_w = torch.where(t.mask, log_prob.detach() - t.log_probs["old"], 0.0).sum(1)
    weights = [math.exp(w) for w in log_w.tolist()]
    expected = sum(weights) ** 2 / (len(weights) * sum(w**2 for w in weights))
    for name in ("grpo", "gspo", "vespo", "minpro"):
        _, metrics = loss(RECIPES[name], log_prob, t, estimate(RECIPES[name], t), entropy)
        assert float(metrics["policy/effective_samples"]) == pytest.approx(expected)


def test_recipes_say_whether_they_judge_and_whether_they_compare() -> None:
    judging = {name for name, recipe in RECIPES.items() if recipe.verdict}
    assert judging >= {"nsr", "topr", "bnpo", "ngrpo", "red_drop", "drpo_decoupled", "xrpo"}
    assert not judging & {"ppo", "grpo", "dapo", "rloo", "gspo", "reinforce", "mini_o3"}
    assert Recipe("x", "", selection=(ZeroVariance("right"),)).verdict
    comparing = {name for name, recipe in RECIPES.items() if recipe.compares}
    assert comparing >= {"grpo", "mc_grpo", "optimal_token_baseline", "opo", "dr_grpo"}
    # A group of one keeps its reward, has another baseline, or compares across prompts.
    assert not comparing & {"ppo", "reinforce", "mini_o3", "rloo", "gigpo", "mssr"}
    assert not comparing & {"on_policy_distillation", "tcod"}  # the teacher tells what is better
    t, _, _ = cases.batch(0)
    alone = t.select(torch.tensor([12]))  # the group of one
    alone.groups.update({k: numbered(ids) for k, ids in alone.groups.items()})
    for name in sorted(comparing - {"empg", "arm_progrpo", "rltf_sd", "rltf_fm"}):
        assert not estimate(RECIPES[name], alone).advantage.any(), name


def test_options_tell_what_is_not_the_default() -> None:
    assert str(Clip()) == "Clip" and str(Clip(high=0.28)) == "Clip(high=0.28)"
