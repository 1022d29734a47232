"""Compiled steps against the learner's own autograd."""

import copy
from typing import Any

import pytest
import torch

from algorithms import EDAC, EDACConfig
from algorithms.learners.soft_actor_critic import LearnerConfig, regression
from mbrl.buffer import Batch
from mbrl.native.build import library
from mbrl.types import Spec
from tests.mbrl.native.moments import same_moments

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")
SPEC = Spec("t", 5, 3, action_low=(-1.0,) * 3, action_high=(1.0,) * 3)
SETTINGS: dict[str, dict[str, Any]] = {
    "sac": {"hidden": (64, 64)},
    "edac": {"critics": 10, "eta": 1.0, "hidden": (64, 64)},
    "widths that fill no vector": {"critics": 3, "eta": 0.5, "hidden": (40, 50, 37)},
    "one hidden layer": {"critics": 3, "eta": 1.0, "hidden": (19,)},
    "huber": {"critics": 4, "eta": 0.5, "hidden": (32, 32), "huber": 0.3},
    "standardised": {"critics": 2, "hidden": (32, 32), "normalise_obs": True},
    "REDQ's": {
        "critics": 5,
        "target_min_of": 2,
        "actor_value": "mean",
        "entropy_in_target": False,
        "hidden": (32, 32),
    },
    "fixed temperature": {"learn_alpha": False, "alpha": 0.2, "policy_average": 0.1},
    "LayerNorm": {"critics": 3, "hidden": (40, 37), "layer_norm": "critics"},
    "LayerNorm in all": {
        "hidden": (32, 32),
        "layer_norm": "all",
        "actor_value": "mean",
        "normalise_obs": True,
    },
    "wide": {"critics": 3, "eta": 1.0, "hidden": (256, 256, 256)},
}


def batch(rows: int, draw: torch.Generator, noise: int = 2) -> Batch:
    """Rows inside wider ones, as a buffer's are, with draws far out in the tails."""
    wide = torch.randn(rows, 20, generator=draw)
    return Batch(
        wide[:, :5],
        wide[:, 5:8].clamp(-1, 1),
        wide[:, 8],
        wide[:, 9:14],
        wide[:, 14].abs().clamp_max(0.99),
        3.0 * torch.randn(noise, rows, 3, generator=draw),
    )


def pair(settings: dict[str, Any]) -> tuple[EDAC, EDAC]:
    """Two agents in one state, of which the second keeps to PyTorch."""
    config = EDACConfig(learner=LearnerConfig(**settings))
    ours, plain = EDAC(SPEC, config), EDAC(SPEC, config)
    plain.learner.compiled = None
    draw = torch.Generator().manual_seed(1)
    if config.learner.normalise_obs:
        for agent in (ours, plain):
            for name in ("actor", "critic", "target"):
                agent.modules[name].normaliser.fit(torch.arange(20.0).view(4, 5) ** 1.5)
    with torch.no_grad():  # deviations beyond their bounds on both sides, actions far from 0
        plain.modules["actor"].net.layers[-1].weight.mul_(3000.0)
        if config.learner.layer_norm != "none":  # values whose slopes count in the policy's step
            plain.modules["critic"].weights[-1].mul_(300.0)
    plain.update(batch(32, draw))
    ours.load_state_dict(copy.deepcopy(plain.state_dict()))
    ours.learner.remembered = plain.learner.remembered.clone()
    return ours, plain


@pytest.mark.parametrize("rows", [1, 61, 256])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_five_updates_are_those_of_autograd(settings: dict[str, Any], rows: int) -> None:
    ours, plain = pair(settings)
    draw = torch.Generator().manual_seed(2)
    for step in range(5):
        sample = batch(rows, draw)
        if settings.get("target_min_of"):
            sample = sample._replace(subset=torch.tensor([3, step % 3]))
        assert ours.learner.compiled is not None and ours.learner.compiled.ready(sample)
        mine, theirs = ours.update(sample), plain.update(sample)
        assert mine.keys() == theirs.keys()
        if step == 0:  # later a rounding error may open a gate that is closed in the other
            same_moments(ours, plain)
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, rtol=2e-4, atol=2e-5, msg=name)
    for name, module in plain.modules.items():
        for key, value in module.state_dict().items():
            found = ours.modules[name].state_dict()[key]
            torch.testing.assert_close(found, value, rtol=1e-4, atol=2e-5, msg=f"{name}.{key}")


def same_weights(ours: EDAC, plain: EDAC, name: str) -> None:
    both = (agent.modules[name].parameters() for agent in (ours, plain))
    for a, b in zip(*both, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_critic_loss_of_its_own_keeps_to_autograd() -> None:
    ours, plain = pair({"hidden": (16, 16)})
    seen = []

    def doubled(learner: Any, sample: Batch, target: torch.Tensor) -> Any:
        seen.append(learner)
        loss, metrics = regression(learner, sample, target)
        return 2 * loss, metrics

    for agent in (ours, plain):
        agent.learner.critic_loss, agent.learner.compiled_critics = doubled, False
    sample = batch(32, torch.Generator().manual_seed(2))
    mine, theirs = ours.update(sample), plain.update(sample)
    assert seen == [ours.learner, plain.learner]
    torch.testing.assert_close(mine["critic/target"], theirs["critic/target"])
    same_weights(ours, plain, "critic")


def test_what_is_not_a_number_does_not_get_lost() -> None:
    ours, _ = pair({"hidden": (16, 16)})
    sample = batch(32, torch.Generator().manual_seed(2))
    obs = sample.obs.clone()
    obs[3, 1] = float("nan")
    ours.update(sample._replace(obs=obs))
    assert all(p.isnan().any() for p in ours.modules["critic"].parameters())
    assert all(p.isnan().any() for p in ours.modules["actor"].parameters())


def test_a_minimum_is_no_number_where_any_critic_is_none() -> None:
    for place in range(2):
        ours, _ = pair({"hidden": (16, 16)})
        with torch.no_grad():
            ours.learner.critic.weights[-1][place] = float("nan")
        metrics = ours.update(batch(32, torch.Generator().manual_seed(2)))
        assert not torch.isfinite(torch.as_tensor(metrics["actor/loss"]))
        assert all(p.isnan().any() for p in ours.modules["actor"].parameters())


def test_new_moments_and_moved_parameters_are_followed() -> None:
    ours, plain = pair({"hidden": (16, 16)})
    draw = torch.Generator().manual_seed(2)
    first, second = batch(32, draw), batch(32, draw)
    for agent in (ours, plain):
        agent.update(first)
    ours.load_state_dict(copy.deepcopy(plain.state_dict()))
    for p in ours.modules["critic"].parameters():
        p.data = p.data.clone()
    for agent in (ours, plain):
        agent.update(second)
    for name in ("actor", "critic", "target"):
        same_weights(ours, plain, name)
