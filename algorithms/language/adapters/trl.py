"""Recipes in TRL's trainer (1.16; github.com/huggingface/trl): GRPOTrainer with the advantages and
the loss of a recipe.

    from trl import GRPOConfig
    trainer = trainer_class()(recipe="gspo", model=..., args=GRPOConfig(...), reward_funcs=...)
    trainer.train()
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from algorithms.language.adapters.tensors import advantages, loss, needs, of_advantages, of_loss
from mbrl.errors import ConfigError
from mbrl.policy_gradient import RECIPES, Recipe
from mbrl.policy_gradient import recipe as named

if TYPE_CHECKING:
    from trl import GRPOTrainer

    Methods = Any  # those of GRPOTrainer
else:
    Methods = object

GIVEN = {"groups.prompt", "log_probs.old", "log_probs.reference"}


@functools.cache
def trainer_class() -> "type[GRPOTrainer]":
    """`RecipeTrainer`, a GRPOTrainer with one more argument, `recipe`: a name or a `Recipe`. What
    TRL's settings say of advantages and loss (loss_type, epsilon, scale_rewards,
    importance_sampling_level, the value of beta, ...) is the recipe's instead; setting one is an
    error. beta above 0 only makes TRL compute log-probs of the reference model, for recipes that
    read them."""
    from trl import GRPOTrainer

    return type("RecipeTrainer", (RecipeMethods, GRPOTrainer), {})


class RecipeMethods(Methods):
    """What `RecipeTrainer` does in place of GRPOTrainer's own methods, which it calls."""

    def __init__(self, recipe: str | Recipe = "grpo", **arguments: Any) -> None:
        self.recipe = served(recipe)
        super().__init__(**arguments)
        check_settings(self.recipe, self.args)

    def _calculate_rewards(self, *arguments: Any, **named: Any) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(*arguments, **named)
        self.rewards_seen = rewards
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if "pixel_values" in output:
            raise ConfigError("recipes are for text; prompts with images are not passed on")
        weights = self.reward_weights.to(self.rewards_seen.device)
        rewards = (self.rewards_seen * weights).nansum(1)
        scored = ~self.rewards_seen.isnan().all(1)  # an answer without a score is left out
        group = self.num_generations if self.model.training else self.num_generations_eval
        mask = trained_tokens(output)
        everywhere = self.accelerator.gather(self.accelerator.pad_across_processes(mask, dim=1))
        prompt = torch.arange(len(rewards), device=rewards.device) // group
        cut = self.accelerator.gather(~ended(output, self.eos_token_ids))
        everywhere = everywhere * scored[:, None]
        advantage, weight = advantages(self.recipe, rewards, everywhere, prompt, truncated=cut)
        begin, steps = self.accelerator.process_index * len(mask), mask.shape[1]
        rows = slice(begin, begin + len(mask))
        output["advantages"] = advantage[rows, :steps]
        output["recipe_weight"] = weight[rows, :steps]
        output["recipe_prompt"] = prompt[rows]
        output["recipe_scored"] = scored[rows]
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        log_prob, entropy, router = self._get_per_token_logps_and_entropies(
            model, ids, attention, inputs["completion_ids"].shape[1],
            compute_entropy=True, compute_aux_loss=self.aux_loss_enabled,
        )  # fmt: skip
        scored = trained_tokens(inputs) * inputs["recipe_scored"][:, None]
        value, metrics = loss(
            self.recipe,
            log_prob,
            inputs["advantages"],
            scored,
            old=inputs.get("old_per_token_logps"),
            weight=inputs["recipe_weight"],
            reference=inputs.get("ref_per_token_logps"),
            entropy=entropy,
            prompt=inputs["recipe_prompt"],
        )
        mode = "train" if self.model.training else "eval"
        for name, number in metrics.items():
            self._metrics[mode][name].append(self.accelerator.gather(number).mean().item())
        if self.aux_loss_enabled:  # balances the experts of a mixture, whatever the recipe
            value = value + self.router_aux_loss_coef * router
            aux = self.accelerator.gather_for_metrics(router).mean().item()
            self._metrics[mode]["aux_loss"].append(aux)
        return value / (self.current_gradient_accumulation_steps if mode == "train" else 1)


def trained_tokens(output: dict[str, Any]) -> Tensor:
    """[B, T]: the tokens that the model chose."""
    mask: Tensor = output["completion_mask"]
    return mask * output["tool_mask"] if "tool_mask" in output else mask


def ended(output: dict[str, Any], ends: Iterable[int]) -> Tensor:
    """[B]: whether the last token of an answer ends it; turns before a tool's result end, too."""
    ids, mask = output["completion_ids"], output["completion_mask"].bool()
    places = torch.arange(mask.shape[1], device=ids.device)
    last = torch.where(mask, places, 0).amax(1, keepdim=True)
    end = torch.isin(ids, torch.tensor([*ends], device=ids.device)) & mask
    result: Tensor = end.gather(1, last)[:, 0]
    return result


def served(recipe: str | Recipe) -> Recipe:
    """The recipe, if TRL's trainer has what it needs. Raises `ConfigError` that names what is
    missing."""
    chosen = named(recipe) if isinstance(recipe, str) else recipe
    reason = _reason(chosen)
    if reason is not None:
        raise ConfigError(
            f"recipe {chosen.name} {reason}; those it serves: {', '.join(all_served())}"
        )
    return chosen


def all_served() -> list[str]:
    """Names of the recipes that TRL's trainer serves."""
    return [name for name in RECIPES if _reason(named(name)) is None]


def _reason(chosen: Recipe) -> str | None:
    lacking = needs(of_advantages(chosen)) - {"groups.prompt"}
    lacking |= needs(of_loss(chosen)) - GIVEN
    lacking |= {f"groups.{k}" for term in chosen.terms for k in term.key if k != "prompt"}
    if lacking:
        return f"needs {', '.join(sorted(lacking))}, which TRL does not have"
    if chosen.requirements:
        return f"is for {', '.join(map(str, chosen.requirements))}, which TRL does not make"
    if chosen.step_size is not None:
        return "changes the learning rate, which TRL's trainer does not"
    if chosen.whole_prompts:
        return "compares the answers to a prompt in its loss, and TRL shuffles them apart"
    return None


def check_settings(chosen: Recipe, args: Any) -> None:
    """Raises `ConfigError` for a setting that would count twice or not at all."""
    reads = "log_probs.reference" in chosen.needs
    if reads and args.beta == 0:
        raise ConfigError(
            f"recipe {chosen.name} reads the reference model; set beta above 0, so that TRL keeps "
            "one (how much it counts is the recipe's)"
        )
    if not reads and args.beta != 0:
        raise ConfigError(
            f"beta is {args.beta:g}, and recipe {chosen.name} has no divergence from a reference; "
            "leave beta at 0"
        )
    base = {f.name: f.default for f in dataclasses.fields(type(args))}
    own: tuple[str, ...] = (
        "loss_type",
        "scale_rewards",
        "importance_sampling_level",
        "epsilon",
        "epsilon_high",
    )
    own += ("delta", "top_entropy_quantile", "off_policy_mask_threshold", "entropy_coef")
    own += ("multi_objective_aggregation", "use_bias_correction_kl", "use_liger_kernel")
    for name in own:
        if name in base and getattr(args, name) != base[name]:
            raise ConfigError(
                f"{name} is {getattr(args, name)!r}: advantages and loss are those of recipe "
                f"{chosen.name}; leave {name} out, or take another recipe"
            )
    if args.use_vllm and args.vllm_importance_sampling_correction:
        raise ConfigError(
            "vllm_importance_sampling_correction weights the loss beside the recipe; set it to "
            "False"
        )
