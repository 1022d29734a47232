"""A recipe's advantages and loss as functions of plain tensors: what every hook is made of."""

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.policy_gradient import Estimate, Recipe, estimate
from mbrl.policy_gradient import loss as objective
from mbrl.policy_gradient import recipe as recipe_called
from mbrl.policy_gradient.axes.option import CURRENT_ENTROPY, Option, check_shapes
from mbrl.policy_gradient.axes.option import missing as missing_in
from mbrl.training import Metrics
from mbrl.types import Trajectories

Fields = Mapping[str, Tensor]  # names of fields of `Trajectories`, as `Recipe.needs` has them
PARTS = ("log_probs", "groups", "segments", "signals")
IDS = ("groups.", "segments.")
SINGLE = ("entropy", "sum_prob_squared", "policy_version", "disagreement", "action_mask")


def advantages(
    recipe: Recipe | str,
    reward: Tensor,
    mask: Tensor,
    prompt: Sequence[Hashable] | Tensor | None = None,
    *,
    truncated: Tensor | None = None,
    fields: Fields | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages [B, T] of the tokens of B answers, and their weights [B, T]: 0 where the recipe
    does not train. Advantages are 0 there and outside the mask.

    `reward` [B] of answers, or [B, T] of tokens (at a token that the policy did not choose, a
    tool's say, it counts at the answer's token before); `mask` [B, T]: 1 where the policy chose the
    token, else 0 (an answer without any is left out, its reward too); `prompt` [B]: which answers
    share a prompt (any ids, or the prompts' own tokens; None: each answer has its own); `truncated`
    [B]: whether an answer was cut off;
    `fields`: what else the recipe reads, each [B, T], by the names in `recipe.needs`, such as
    `log_probs.old`, `groups.state` (any ids) or `segments.turn` (numbered from 0 in each answer).

    Raises `ConfigError` that names what the recipe needs and is not there, or has another shape.
    """
    recipe = by_name(recipe)
    t = trajectories(mask, reward, prompt, truncated, fields)
    require(recipe, of_advantages(recipe), t)
    for name in needs(of_loss(recipe)) - needs(of_advantages(recipe)) - {"groups.prompt"}:
        t = put(t, name, torch.zeros_like(t.reward))  # read by the loss alone, which has its own
    made = estimate(recipe, t)
    if prompt is None and rows_differ(t) and not made.advantage[t.mask].any():
        raise ConfigError(
            f"recipe {recipe.name} compares the answers to a prompt, and without `prompt` each "
            "answer is alone, so that every advantage is 0; say which answers share one"
        )
    return made.advantage * (made.weight != 0), made.weight


def loss(
    recipe: Recipe | str,
    log_prob: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    old: Tensor | None = None,
    weight: Tensor | None = None,
    reference: Tensor | None = None,
    entropy: Tensor | None = None,
    reward: Tensor | None = None,
    prompt: Sequence[Hashable] | Tensor | None = None,
    fields: Fields | None = None,
) -> tuple[Tensor, Metrics]:
    """The loss, a scalar with gradients in `log_prob` [B, T], and what it measured.

    `advantage` and `weight` [B, T] are those of `advantages` (no weight: all of the mask; one of
    shape [B] counts for all tokens of an answer); `old` are log-probs [B, T] of the policy that
    sampled (None: the current one), `reference` those of the reference policy, `entropy` [B, T]
    that of the current policy. The others are as for `advantages`.

    Raises `ConfigError` that names what the recipe needs and is not there, or has another shape.
    """
    recipe = by_name(recipe)
    if log_prob.dtype in (torch.bfloat16, torch.float16):
        log_prob = log_prob.float()  # a ratio near 1 is 1 in half precision
    given = dict(fields or {}) | {"log_probs.old": log_prob.detach() if old is None else old}
    if reference is not None:
        given["log_probs.reference"] = reference
    if reward is None and any(option.verdict for option in of_loss(recipe)):
        raise ConfigError(f"the loss of recipe {recipe.name} reads rewards; give `reward`")
    known = torch.zeros_like(log_prob) if reward is None else reward
    t = trajectories(mask, known, prompt, None, given)
    if recipe.needs_entropy and entropy is None:
        raise ConfigError(
            f"recipe {recipe.name} needs the current policy's entropy; give `entropy`"
        )
    require(recipe, of_loss(recipe), t)
    advantage = of_tokens("advantage", advantage, t.mask)
    kept = t.mask.to(log_prob.dtype)
    if weight is not None:
        kept = of_tokens("weight", weight, t.mask) * t.mask
    advantage = torch.where(t.mask, advantage, torch.zeros_like(advantage))
    return objective(recipe, log_prob, t, Estimate(advantage, kept), entropy)


def by_name(recipe: Recipe | str) -> Recipe:
    return recipe_called(recipe) if isinstance(recipe, str) else recipe


def of_tokens(name: str, value: Tensor, mask: Tensor) -> Tensor:
    """`value` [B], [B, 1] or [B, T] as one of every token [B, T]."""
    rows = len(mask)
    if value.shape in ((rows,), (rows, 1)):
        return value.reshape(rows, 1).expand(mask.shape)
    if value.shape != mask.shape:
        raise ConfigError(
            f"{name} is {tuple(value.shape)} and mask {tuple(mask.shape)}; give one number for "
            "every token or for every answer"
        )
    return value


def trajectories(
    mask: Tensor,
    reward: Tensor,
    prompt: Sequence[Hashable] | Tensor | None,
    truncated: Tensor | None,
    fields: Fields | None,
) -> Trajectories:
    """Answers in this library's words; a reward [B] is that of an answer's last token."""
    mask = torch.as_tensor(mask)
    if mask.ndim != 2 or len(mask) == 0:
        raise ConfigError(
            f"mask is {tuple(mask.shape)}; give one number for every token, [B, T], of one answer "
            "or more"
        )
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ConfigError("mask has numbers other than 0 and 1; 1 marks the tokens of the answer")
    mask = mask.bool()
    rows, steps = mask.shape
    last = last_steps(mask)
    reward = numbers(reward)
    if reward.shape == (rows,):
        reward = torch.where(last, reward[:, None], torch.zeros_like(reward)[:, None])
    elif reward.shape == mask.shape:
        reward = at_answers(reward, mask)
    if prompt is not None and len(prompt) != rows:
        raise ConfigError(f"{len(prompt)} prompts are given for {rows} answers")
    cut = mask.new_zeros(rows) if truncated is None else torch.as_tensor(truncated).to(mask)
    if cut.shape != (rows,):
        raise ConfigError(
            f"truncated is {tuple(cut.shape)}; give one flag for each of the {rows} answers"
        )
    empty = reward.new_zeros(rows, steps, 0)
    group = numbered(range(rows) if prompt is None else prompt).to(mask.device)
    t = Trajectories(
        obs=empty,
        action=torch.zeros_like(mask, dtype=torch.int64),
        reward=reward,
        next_obs=empty,
        terminated=last & ~cut[:, None],
        truncated=last & cut[:, None],
        mask=mask,
        groups={"prompt": group[:, None].expand(rows, steps)},
    )
    for name, value in (fields or {}).items():
        t = put(t, name, ids(name, value, mask) if name.startswith(IDS) else value)
    check_shapes(t)
    return t


def numbers(reward: Tensor | Sequence[float]) -> Tensor:
    """Rewards in single precision at least: sums and squares of whole numbers and of half precision
    are not what is meant. Raises `ConfigError` where one is not finite."""
    reward = torch.as_tensor(reward)
    reward = reward if reward.dtype == torch.float64 else reward.float()
    if not bool(reward.isfinite().all()):
        row = int((~reward.isfinite()).nonzero()[0, 0])
        raise ConfigError(f"the reward of answer {row} is not finite; leave such answers out")
    return reward


def at_answers(reward: Tensor, mask: Tensor) -> Tensor:
    """Rewards [B, T] with those outside the mask moved to the answer's token before, or to its
    first; a trainer may put an answer's reward behind a tool's text."""
    places = torch.arange(mask.shape[1], device=mask.device)
    before = torch.where(mask, places, -1).cummax(1).values
    first = mask.int().argmax(1, keepdim=True)
    place = torch.where(before < 0, first, before)
    return torch.zeros_like(reward).scatter_add(1, place, reward) * mask.any(1, keepdim=True)


def rows_differ(t: Trajectories) -> bool:
    """Whether answers have different rewards."""
    total = t.reward.sum(1)
    return bool((total != total[:1]).any())


def last_steps(mask: Tensor) -> Tensor:
    """The last step of every row [B, T] that has one."""
    after = mask.flip(1).cumsum(1).flip(1)
    return mask & (after == 1)


def numbered(ids: Iterable[Hashable] | Tensor) -> Tensor:
    """Ids of any kind [B] as integers from 0 in the order in which they first come."""
    known: dict[Hashable, int] = {}
    values = ids.tolist() if isinstance(ids, Tensor) else ids
    values = [v.tolist() if isinstance(v, Tensor) else v for v in values]
    values = [tuple(v) if isinstance(v, list) else v for v in values]
    return torch.tensor([known.setdefault(i, len(known)) for i in values], dtype=torch.int64)


def ids(name: str, value: Tensor, mask: Tensor) -> Tensor:
    """Ids [B, T] as `Trajectories` has them, 0 outside the mask: groups of any whole numbers, here
    numbered from 0, and parts of an answer, which are numbered from 0 already."""
    value = torch.as_tensor(value)
    if value.shape != mask.shape:
        return value  # refused with all shapes
    value = torch.where(mask, value, torch.zeros_like(value))
    whole = value.long()
    if bool((whole != value).any()):
        raise ConfigError(f"{name} has numbers that are not whole; give ids")
    if name.startswith("groups."):
        numbers_from_0: Tensor = whole.unique(return_inverse=True)[1]
        return numbers_from_0
    if bool(((whole < 0) | (whole >= mask.shape[1])).any()):
        raise ConfigError(
            f"{name} has ids between {int(whole.min())} and {int(whole.max())}; parts of an answer "
            f"are numbered from 0 in each, here below {mask.shape[1]}, its number of tokens"
        )
    return whole


def put(t: Trajectories, name: str, value: Tensor) -> Trajectories:
    """`t` with a field by the name that `Recipe.needs` has for it."""
    part, _, key = name.partition(".")
    if part in PARTS and key:
        changed = {part: getattr(t, part) | {key: value}}
    elif name in SINGLE:
        changed = {name: value}
    else:
        raise ConfigError(
            f"there is no field {name!r}; names are {', '.join(SINGLE)} and such as "
            + ", ".join(f"{p}.NAME" for p in PARTS)
        )
    return dataclasses.replace(t, **changed)


def of_advantages(recipe: Recipe) -> list[Option]:
    """The options that advantages are made by."""
    terms = [option for term in recipe.terms for option in term.options()]
    return [*terms, *recipe.sampling, *recipe.modulation, *recipe.selection]


def of_loss(recipe: Recipe) -> list[Option]:
    """The options that the loss is made by."""
    options = [
        recipe.ratio,
        *recipe.rejection,
        recipe.gate,
        recipe.aggregation,
        *recipe.regularisers,
    ]
    return options if recipe.step_size is None else [*options, recipe.step_size]


def needs(options: Iterable[Option]) -> set[str]:
    return {name for option in options for name in option.needs()} - {CURRENT_ENTROPY}


def require(recipe: Recipe, options: Iterable[Option], t: Trajectories) -> None:
    """Raises `ConfigError` that names what the options need and `t` lacks."""
    lacking = {name for option in options for name in missing_in(option, t)}
    for term in recipe.terms:
        keys = [k for k in term.key if k not in t.groups and k not in t.segments]
        lacking |= {f"groups.{key}" for key in keys}
    if lacking:
        suited = ", ".join(map(str, recipe.requirements)) or "data with these fields"
        place = (
            "Give `reference`" if lacking == {"log_probs.reference"} else "Put them into `fields`"
        )
        raise ConfigError(
            f"recipe {recipe.name} needs {', '.join(sorted(lacking))}, which are not given; it is "
            f"for: {suited}. {place}"
        )
