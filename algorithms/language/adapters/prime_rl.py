"""Recipes as losses of prime-rl (github.com/PrimeIntellect-ai/prime-rl, August 2026), in its
configuration:

    [trainer.loss]
    type = "custom"
    import_path = "algorithms.language.adapters.prime_rl.recipe_loss"
    [trainer.loss.kwargs]
    recipe = "cispo"

Its advantages stay those of `[orchestrator.algo]`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from algorithms.language.adapters.tensors import loss
from mbrl.errors import ConfigError
from mbrl.policy_gradient import recipe as named
from mbrl.policy_gradient.axes.aggregation import SequenceMean, SequenceSum, TokenMean
from mbrl.policy_gradient.axes.gate import CovarianceClip, CovariancePenalty


class LossOutputs(NamedTuple):
    """What prime-rl reads of a loss: `prime_rl.trainer.rl.loss.LossOutputs` has these fields."""

    loss: Tensor
    metrics: dict[str, Tensor]


def recipe_loss(inputs: Any, recipe: str) -> LossOutputs:
    """The loss of one answer, from prime-rl's `LossInputs`: log-probs of the trainer and of the
    inference engine, advantages and the mask, each [T], a reference and weights where there are.

    prime-rl adds the losses of answers up and divides by the number of tokens. So a recipe that
    takes the mean over tokens is itself; of one that takes it over answers each answer counts as it
    should, and the whole is smaller by the answers' mean length, which Adam divides out. Raises
    `ConfigError` for recipes with other means, or that need what one answer does not have, such as
    the largest covariances of a batch, or another learning rate.
    """
    chosen = named(recipe)
    kind = chosen.aggregation
    if not isinstance(kind, TokenMean | SequenceMean | SequenceSum) or chosen.whole_prompts:
        raise ConfigError(
            f"recipe {recipe} takes the {kind.formula()} or compares answers in its loss, and "
            "prime-rl gives one answer at a time; take one with a mean over tokens or sequences"
        )
    if isinstance(chosen.gate, CovarianceClip | CovariancePenalty):
        raise ConfigError(
            f"recipe {recipe} ranks the tokens of a whole batch in its loss, and prime-rl gives "
            "one answer at a time; take another gate"
        )
    if chosen.step_size is not None:
        raise ConfigError(
            f"recipe {recipe} changes the learning rate, which prime-rl's hook does not; take "
            "another, or leave step_size out"
        )
    now, mask = inputs.trainer_logprobs, inputs.loss_mask
    weights = inputs.loss_weights
    weight = mask.to(now.dtype) if weights is None else mask * weights
    reference = inputs.ref_logprobs
    value, metrics = loss(
        chosen,
        now[None],
        inputs.advantages[None],
        mask[None],
        old=inputs.inference_logprobs[None],
        weight=weight[None],
        reference=None if reference is None else reference[None],
    )
    tokens = mask.sum() if isinstance(kind, TokenMean) else torch.ones_like(value)
    return LossOutputs(value * tokens, {k.replace("policy/", ""): v for k, v in metrics.items()})
