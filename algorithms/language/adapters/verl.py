"""Recipes as advantage estimators and policy losses of verl (0.9; github.com/volcengine/verl).

One variable makes all that verl's hooks can serve known in each of its processes:

    VERL_USE_EXTERNAL_MODULES=algorithms.language.adapters.register_in_verl

`overrides("gspo")` are the settings of verl that choose one."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from algorithms.language.adapters.tensors import advantages, loss, needs, of_advantages, of_loss
from mbrl.errors import ConfigError
from mbrl.policy_gradient import RECIPES, Recipe, recipe
from mbrl.policy_gradient.axes.aggregation import SequenceMean, SequenceSum, TokenMean
from mbrl.policy_gradient.axes.regulariser import KL, EntropyBonus
from mbrl.policy_gradient.axes.selection import Finished

PREFIX = "longreach_"
AT_ADVANTAGES, AT_LOSS = {"groups.prompt"}, {"log_probs.old"}  # what the hooks are given
ACTOR = "actor_rollout_ref.actor"


def overrides(name: str) -> dict[str, Any]:
    """verl's settings for a recipe: its estimator, its loss, and what verl adds to the loss itself
    (a divergence from the reference, an entropy bonus). Raises `ConfigError` for a recipe that
    verl's hooks do not serve."""
    chosen = served(name)
    settings: dict[str, Any] = {
        "algorithm.adv_estimator": PREFIX + name,
        f"{ACTOR}.policy_loss.loss_mode": PREFIX + name,
        f"{ACTOR}.use_kl_loss": False,
        f"{ACTOR}.entropy_coeff": 0.0,
    }
    settings |= {f"{ACTOR}.{k}": v for k, v in _aggregation(chosen).items()}
    for extra in chosen.regularisers:
        if isinstance(extra, KL):
            settings[f"{ACTOR}.use_kl_loss"] = True
            settings[f"{ACTOR}.kl_loss_coef"] = extra.weight
            settings[f"{ACTOR}.kl_loss_type"] = extra.estimator
        elif isinstance(extra, EntropyBonus):
            settings[f"{ACTOR}.entropy_coeff"] = extra.weight
    return settings


def _aggregation(chosen: Recipe) -> dict[str, Any]:
    """How verl takes the mean of what it adds itself."""
    kind = chosen.aggregation
    if isinstance(kind, SequenceSum) and kind.length is not None:
        return {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": kind.length}
    if isinstance(kind, SequenceSum):
        return {"loss_agg_mode": "seq-mean-token-sum"}
    mean = isinstance(kind, TokenMean)
    return {"loss_agg_mode": "token-mean" if mean else "seq-mean-token-mean"}


def served(name: str) -> Recipe:
    """The recipe, if verl's hooks have what it needs: rewards, masks and prompts for advantages;
    log-probs of now and of sampling for the loss. Raises `ConfigError` with the reason if they do
    not."""
    chosen = recipe(name)
    reason = _reason(chosen)
    if reason is not None:
        raise ConfigError(f"recipe {name} {reason}; those it serves: {', '.join(all_served())}")
    return chosen


def all_served() -> list[str]:
    """Names of the recipes that verl's hooks serve."""
    return [name for name in RECIPES if _reason(recipe(name)) is None]


def _reason(chosen: Recipe) -> str | None:
    """Why verl cannot serve a recipe."""
    bare = dataclasses.replace(chosen, regularisers=())
    lacking = (needs(of_advantages(bare)) - AT_ADVANTAGES) | (needs(of_loss(bare)) - AT_LOSS)
    lacking |= {f"groups.{k}" for term in chosen.terms for k in term.key if k != "prompt"}
    if lacking:
        return f"needs {', '.join(sorted(lacking))}, which verl does not give to its hooks"
    if chosen.requirements:
        return f"is for {', '.join(map(str, chosen.requirements))}, which verl does not make"
    if not isinstance(chosen.aggregation, TokenMean | SequenceMean | SequenceSum):
        return f"takes the {chosen.aggregation.formula()}, which verl's micro-batches do not keep"
    if any(isinstance(option, Finished) for option in chosen.selection):
        return "leaves out answers that were cut off, and verl does not tell its hooks which"
    if bare.removes:
        return "leaves answers out of its means, and verl's hooks do not tell the loss which"
    if bare.needs_entropy:
        return "reads the current entropy in its gate, which verl does not give to its hooks"
    if bare.step_size is not None:
        return "changes the learning rate, which no hook of verl does"
    if bare.whole_prompts:
        return "compares the answers to a prompt in its loss, and verl's micro-batches split them"
    for extra in chosen.regularisers:
        if not isinstance(extra, EntropyBonus) and not _kl_of_verl(extra):
            return f"adds {extra} to its loss, for which verl has no setting"
    return None


def _kl_of_verl(extra: object) -> bool:
    return (
        isinstance(extra, KL)
        and extra.anchor == "reference"
        and not extra.weighted
        and extra.estimator in ("k1", "k2", "k3")
    )


def estimator(chosen: Recipe) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function for `register_adv_est`."""

    def advantage(
        token_level_rewards: Tensor, response_mask: Tensor, index: Any = None, **others: Any
    ) -> tuple[Tensor, Tensor]:
        prompt = None if index is None else list(index)
        values, weight = advantages(chosen, token_level_rewards, response_mask, prompt)
        values = values * weight  # the loss is not given weights, and no gate turns on their size
        return values, values

    return advantage


def policy_loss(chosen: Recipe) -> Callable[..., tuple[Tensor, dict[str, float]]]:
    """A function for `register_policy_loss`. Means are over verl's whole batch where it says how
    many tokens and answers that has."""
    bare = dataclasses.replace(chosen, regularisers=())  # verl adds these

    def compute(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        weight = response_mask.to(log_prob.dtype)
        if rollout_is_weights is not None:
            weight = weight * rollout_is_weights
        value, metrics = loss(
            bare, log_prob, advantages, response_mask, old=old_log_prob, weight=weight
        )
        info = getattr(config, "global_batch_info", None) or {}
        value = value * _share(chosen, response_mask, info, value.dtype)
        return value, {f"actor/{k.removeprefix('policy/')}": float(v) for k, v in metrics.items()}

    return compute


def _share(chosen: Recipe, mask: Tensor, info: dict[str, Any], dtype: torch.dtype) -> Any:
    """What a mean over this micro-batch counts in the mean over the whole batch; gradients of
    processes are averaged, so that each counts `dp_size` times."""
    mask = mask.bool()
    if isinstance(chosen.aggregation, TokenMean):
        here, everywhere = mask.sum(), info.get("batch_num_tokens")
    else:
        here, everywhere = mask.any(1).sum(), info.get("global_batch_size")
    if everywhere is None:
        return 1.0
    whole = torch.as_tensor(everywhere, dtype=dtype, device=mask.device).clamp_min(1)
    return here.clamp_min(1).to(dtype) * info.get("dp_size", 1) / whole


def register(core: Any) -> list[str]:
    """Make all recipes that verl serves known to its module `verl.trainer.ppo.core_algos`; their
    names."""
    names = all_served()
    for name in names:
        core.register_adv_est(PREFIX + name)(estimator(recipe(name)))
        core.register_policy_loss(PREFIX + name)(policy_loss(recipe(name)))
    return names
