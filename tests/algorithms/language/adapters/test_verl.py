"""verl's hooks: called as verl 0.9.1 calls them, against what verl's own functions gave."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.language.adapters import verl
from mbrl.errors import ConfigError
from mbrl.policy_gradient import estimate, loss, recipe
from tests.mbrl.policy_gradient.references.batches import arrays

RECORDED = json.loads(
    (Path(__file__).parents[3] / "mbrl/policy_gradient/references/verl.json").read_text()
)
# Where verl has both an estimator and a loss, with nothing that it adds to the loss itself.
SAME = ["dr_grpo", "rloo", "grpo_passk", "opo", "dual_clip_grpo", "gspo", "gspo_token", "gmpo"]
SAME += ["cispo", "sapo_soft_gate"]


class Core:
    """`verl.trainer.ppo.core_algos`, as far as it registers."""

    def __init__(self) -> None:
        self.estimators: dict[str, Callable[..., Any]] = {}
        self.losses: dict[str, Callable[..., Any]] = {}

    def register_adv_est(self, name: str) -> Callable[[Any], Any]:
        return lambda function: self.estimators.setdefault(name, function)

    def register_policy_loss(self, name: str) -> Callable[[Any], Any]:
        return lambda function: self.losses.setdefault(name, function)


@pytest.fixture(name="core")
def _core() -> Core:
    core = Core()
    assert verl.register(core) == verl.all_served()
    return core


def called(core: Core, name: str, b: dict[str, Any], info: dict[str, Any]) -> Tensor:
    """The loss, with the arguments of `compute_advantage` (trainer/ppo/ray_trainer.py) and of
    `ppo_loss` (workers/utils/losses.py)."""
    advantages, returns = core.estimators[f"longreach_{name}"](
        token_level_rewards=b["reward"],
        response_mask=b["mask"],
        config=SimpleNamespace(),
        index=b["prompt"].astype(str).astype(object),  # verl's are uuids
    )
    assert advantages.shape == returns.shape == b["mask"].shape
    value, metrics = core.losses[f"longreach_{name}"](
        old_log_prob=b["old"],
        log_prob=b["log_prob"],
        advantages=advantages,
        response_mask=b["mask"].bool(),
        loss_agg_mode="token-mean",
        config=SimpleNamespace(global_batch_info=info),
        rollout_is_weights=None,
    )
    assert all(isinstance(v, float) for v in metrics.values())
    return value


@pytest.mark.parametrize("seed", RECORDED["seeds"])
@pytest.mark.parametrize("name", SAME)
def test_it_is_what_verl_computes(name: str, seed: int, core: Core) -> None:
    b = arrays("all", seed)
    value = called(core, name, b, {})
    right = RECORDED["recipes"][name][RECORDED["seeds"].index(seed)]
    assert value.item() == pytest.approx(right["loss"], rel=1e-5, abs=1e-7)
    (gradient,) = torch.autograd.grad(value, b["log_prob"])
    torch.testing.assert_close(
        gradient, torch.tensor(right["gradient"]).double(), rtol=1e-4, atol=1e-7
    )


@pytest.mark.parametrize("seed", RECORDED["seeds"])
def test_what_verl_adds_itself_is_left_to_it(seed: int, core: Core) -> None:
    """GRPO's divergence: the settings give verl's own term, with the recipe's weight."""
    b = arrays("all", seed)
    settings = verl.overrides("grpo")
    actor = {k.removeprefix("actor_rollout_ref.actor."): v for k, v in settings.items()}
    assert actor["use_kl_loss"] and actor["kl_loss_type"] == "k3"
    assert actor["loss_agg_mode"] == "seq-mean-token-mean" and actor["kl_loss_coef"] == 0.04
    d = b["reference"] - b["log_prob"]
    penalty = (d.exp() - d - 1) * b["mask"]
    mean = (penalty.sum(1) / b["mask"].sum(1)).mean()
    value = called(core, "grpo", b, {}) + actor["kl_loss_coef"] * mean
    right = RECORDED["recipes"]["grpo"][RECORDED["seeds"].index(seed)]["loss"]
    assert value.item() == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize("name", verl.all_served())
def test_every_recipe_comes_through_the_hooks_whole(name: str, core: Core) -> None:
    """But for what verl adds to the loss itself."""
    b = arrays("all", 1)
    bare = dataclasses.replace(recipe(name), regularisers=())
    t = dataclasses.replace(b["t"], terminated=b["t"].terminated | b["t"].truncated)
    t = dataclasses.replace(t, truncated=torch.zeros_like(t.truncated))  # verl does not say
    right, _ = loss(bare, b["log_prob"], t, estimate(bare, t))
    value = called(core, name, b, {})
    assert value.item() == pytest.approx(right.item(), rel=1e-6, abs=1e-9)
    pair = (torch.autograd.grad(x, b["log_prob"])[0] for x in (value, right))
    torch.testing.assert_close(*pair)


@pytest.mark.parametrize("name", ["cispo", "gspo", "dr_grpo"])
def test_micro_batches_add_up_to_the_batch(name: str, core: Core) -> None:
    """Over two processes of two micro-batches each, whose gradients verl averages."""
    b = arrays("all", 0)
    whole = called(core, name, b, {})
    advantages = core.estimators[f"longreach_{name}"](b["reward"], b["mask"], index=b["prompt"])[0]
    mask = b["mask"].bool()
    info = {"dp_size": 2, "batch_num_tokens": int(mask.sum()), "global_batch_size": len(mask)}
    parts = torch.arange(len(mask)).tensor_split(4)
    losses = [
        core.losses[f"longreach_{name}"](
            old_log_prob=b["old"][rows],
            log_prob=b["log_prob"][rows],
            advantages=advantages[rows],
            response_mask=mask[rows],
            loss_agg_mode="token-mean",
            config=SimpleNamespace(global_batch_info=info),
            rollout_is_weights=None,
        )[0]
        for rows in parts
    ]
    assert (sum(losses) / 2).item() == pytest.approx(whole.item(), rel=1e-9)


def test_weights_of_the_engine_multiply_the_loss(core: Core) -> None:
    b = arrays("all", 0)
    advantages = core.estimators["longreach_rloo"](b["reward"], b["mask"], index=b["prompt"])[0]
    parts = (b["old"], b["log_prob"], advantages, b["mask"])
    half = core.losses["longreach_rloo"](*parts, rollout_is_weights=0.5 * b["mask"])[0]
    assert half.item() == pytest.approx(0.5 * core.losses["longreach_rloo"](*parts)[0].item())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ppo", "needs signals.value"),
        ("gigpo", "needs groups.state"),
        ("prefix_rl", "is for answers that go on from parts of right ones"),
        ("balanced_aggregation", "micro-batches do not keep"),
        ("calibrl", "is for log-probs of an expert"),
    ],
)
def test_what_the_hooks_cannot_serve_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){reason}.*those it serves: .*gspo"):
        verl.overrides(name)


def test_settings_of_verl_for_other_means() -> None:
    settings = verl.overrides("dr_grpo")
    assert settings["algorithm.adv_estimator"] == "longreach_dr_grpo"
    assert settings["actor_rollout_ref.actor.loss_agg_mode"] == "seq-mean-token-sum-norm"
    assert settings["actor_rollout_ref.actor.loss_scale_factor"] == 1024
    assert not settings["actor_rollout_ref.actor.use_kl_loss"]
