"""Drawing turns from a language model, with the exact log-probs of what drew them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algorithms.language.models.protocol import LanguageModel
from algorithms.language.models.restricted import Restricted
from mbrl.config import NonNegative, Rate, Settings
from mbrl.errors import ConfigError


@dataclass(frozen=True)
class Sampling(Settings):
    """How tokens are drawn: logits over `temperature` (0: the likeliest token), then only the
    likeliest tokens that together have the probability `top_p`, renormalised."""

    temperature: NonNegative = 1.0
    top_p: Rate = 1.0


class SampledTurn(NamedTuple):
    """What one row of a `Turn` says, as plain numbers; `kept` is empty where nothing was kept."""

    tokens: list[int]
    behaviour: list[float]
    model: list[float]
    kept: list[list[int]]


@dataclass(frozen=True)
class Turn:
    """Tokens [B, N] of a turn each, real where `real` [B, N]. `behaviour` [B, N] are their
    log-probs under the distribution that drew them, `model` [B, N] those of the logits as they are.
    `kept` [B, N, K], with `top_p` below 1 or a `Restricted` model, holds the ids that could be
    drawn, padded by -1."""

    tokens: Tensor
    real: Tensor
    behaviour: Tensor
    model: Tensor
    kept: Tensor | None

    def rows(self) -> list[SampledTurn]:
        """Row by row, without what is not real."""
        count = self.real.sum(1).tolist()
        tokens, behaviour, model = (
            values.tolist() for values in (self.tokens, self.behaviour, self.model)
        )
        kept = [[]] * len(count) if self.kept is None else self.kept.tolist()
        turns = []
        for i, n in enumerate(count):
            sets = [[k for k in ids if k >= 0] for ids in kept[i][:n]]
            turns.append(SampledTurn(tokens[i][:n], behaviour[i][:n], model[i][:n], sets))
        return turns


def sampling_distribution(
    logits: Tensor, sampling: Sampling, restricted: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs [..., V] of the tokens that may be drawn, -inf for the others, and with `top_p`
    below 1, or if logits of -inf are `restricted` tokens, their ids [..., K], likeliest first,
    padded by -1."""
    if sampling.temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        point = torch.full_like(logits, -torch.inf).scatter(-1, best, 0.0)
        return point, best
    log_p = torch.log_softmax(logits / sampling.temperature, -1)
    if sampling.top_p == 1 and not restricted:
        return log_p, None
    ordered, ids = log_p.sort(stable=True, dim=-1, descending=True)
    mass = ordered.exp().cumsum(-1)
    inside = ~torch.isneginf(ordered)
    if sampling.top_p < 1:
        inside &= mass - ordered.exp() < sampling.top_p  # the token that crosses is in
    ordered = torch.where(inside, ordered, -torch.inf)
    ordered = ordered - ordered.logsumexp(-1, keepdim=True)
    most = int(inside.sum(-1).max())
    kept = torch.where(inside, ids, -1)[..., :most]
    return torch.full_like(log_p, -torch.inf).scatter(-1, ids, ordered), kept


def draw(log_p: Tensor, uniform: Tensor) -> Tensor:
    """Ids [...] drawn from log-probs [..., V] by the inverse of their distribution function at
    `uniform` [...] in [0, 1), float64."""
    mass = log_p.double().exp().cumsum(-1)
    total = mass[..., -1]
    point = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return (mass <= point[..., None]).sum(-1)


@torch.no_grad()
def sample_turn(
    model: LanguageModel,
    cache: Any,
    logits: Tensor,
    sampling: Sampling,
    uniform: Tensor,
    limits: Tensor,
    *,
    end: int,
    pad: int,
) -> Turn:
    """One turn of every row of `cache`, whose next token has `logits` [B, V]: token after token,
    drawn by `uniform` [B, N] float64, until `end` or the row's limit, `limits` [B] in 1 to N. The
    last token of a turn is not in the cache yet. Rows that have ended are dropped from the work
    when they are half of it, which changes no text: random numbers belong to a row."""
    rows = torch.arange(len(logits), device=logits.device)
    whole, part, chosen = cache, cache, rows
    tokens = torch.full(uniform.shape, pad, dtype=torch.int64, device=logits.device)
    real = torch.zeros(uniform.shape, dtype=torch.bool, device=logits.device)
    behaviour = torch.zeros(uniform.shape, dtype=logits.dtype, device=logits.device)
    plain, kept = torch.zeros_like(behaviour), []
    going = torch.ones_like(rows, dtype=torch.bool)  # of the chosen rows
    for i in range(uniform.shape[1]):
        log_p, ids = sampling_distribution(logits, sampling, isinstance(model, Restricted))
        token = draw(log_p, uniform[chosen, i])
        tokens[chosen, i] = torch.where(going, token, pad)
        real[chosen, i] = going
        behaviour[chosen, i] = torch.where(going, taken(log_p, token), 0.0)
        plain[chosen, i] = torch.where(going, taken(logits.log_softmax(-1), token), 0.0)
        if ids is not None and sampling.temperature > 0:
            spread = ids.new_full((len(rows), ids.shape[1]), -1)
            spread[chosen] = torch.where(going[:, None], ids, -1)
            kept.append(spread)
        going = going & (token != end) & (i + 1 < limits[chosen])
        left = int(going.sum())
        if left == 0:
            break
        if 2 * left <= len(chosen):
            if part is not whole:
                whole.put_back(part, chosen)
            chosen, token = chosen[going], token[going]
            part, going = whole.select(chosen), torch.ones_like(token, dtype=torch.bool)
        logits = model.extend(token[:, None], going[:, None], part)
    if part is not whole:
        whole.put_back(part, chosen)
    n = int(real.sum(1).max())
    widest = max((k.shape[1] for k in kept), default=0)
    ids = None
    if kept:
        ids = torch.stack(
            [torch.nn.functional.pad(k, (0, widest - k.shape[1]), value=-1) for k in kept], 1
        )[:, :n]
    return Turn(tokens[:, :n], real[:, :n], behaviour[:, :n], plain[:, :n], ids)


def taken(log_p: Tensor, token: Tensor) -> Tensor:
    return log_p.gather(-1, token[..., None])[..., 0]


def log_probs_and_entropy(
    logits: Tensor, tokens: Tensor, temperature: float = 1.0, kept: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Of `tokens` [B, T], each drawn after the `logits` [B, T, V]: their log-probs under the same
    `temperature` and `kept` set [B, T, K] with which they were sampled, and the entropy and the sum
    of squared probabilities of that distribution; [B, T] each, all with gradients."""
    if temperature <= 0:
        raise ConfigError("greedy turns have no log-probs to learn from; sample them")
    scaled = logits / temperature
    if kept is None:
        log_p = scaled.log_softmax(-1)
        chosen = taken(log_p, tokens)
    else:
        inside = kept >= 0
        some = inside.any(-1, keepdim=True)  # steps that nobody sampled keep nothing: all do then
        values = scaled.gather(-1, kept.clamp_min(0))
        values = torch.where(inside | ~some, values, -torch.inf)
        total = torch.where(some[..., 0], values.logsumexp(-1), scaled.logsumexp(-1))
        chosen = taken(scaled, tokens) - total
        log_p = values.log_softmax(-1)
    p = log_p.exp()
    entropy = -(p * torch.where(p > 0, log_p, 0.0)).sum(-1)
    return chosen, entropy, p.square().sum(-1)
