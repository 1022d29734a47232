"""Decoding of a masked model: which places are filled in at which step, and with what."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from algorithms.masked_diffusion.fitting import Predict
from mbrl.config import Count, NonNegative, Positive, Settings
from mbrl.errors import ConfigError


@dataclass(frozen=True)
class DecodingConfig(Settings):
    """How a region of L places is filled in.

    With `ascending` step i fills in 2^i places, floor(log2 L) steps in all, the last of which fills
    in the rest (the ascending step-size scheduler, ASS); without, `steps` steps share the places
    evenly. The confidence of end tokens counts by a factor, from `end_from` to `end_to` in a line
    over the steps, or with `ascending` over the places that are filled in, of 2^S in S steps
    (early rejection of end tokens, EOSER; 1 and 1: none), which keeps the places after a short
    answer from being filled in first. Both are of "Taming Masked Diffusion
    Language Models via Consistency Trajectory Reinforcement Learning with Fewer Decoding Step"
    (arXiv 2509.23924)."""

    steps: Count = 16
    ascending: bool = False
    # where tokens are drawn most surely; at random; from left to right
    order: Literal["confidence", "random", "left"] = "confidence"
    temperature: NonNegative = 1.0  # of the draw of tokens; 0: the likeliest
    end_from: Positive = 1.0
    end_to: Positive = 1.0

    def counts(self, length: int) -> list[int]:
        """How many places of `length` each step fills in. Raises `ConfigError` for more steps than
        places."""
        if self.ascending:
            steps = max(1, length.bit_length() - 1)
            first = [2**i for i in range(steps - 1)]
            return [*first, length - sum(first)]
        if self.steps > length:
            raise ConfigError(f"steps is {self.steps}, a region has {length} places; give fewer")
        each, more = divmod(length, self.steps)
        return [each + (i < more) for i in range(self.steps)]

    def end_factors(self, steps: int) -> list[float]:
        """The factor of the confidence of end tokens in every step."""
        if self.ascending:
            share = [(2 ** (i + 1) - 1) / 2**steps for i in range(steps)]
        else:
            share = [i / max(1, steps - 1) for i in range(steps)]
        return [self.end_from + (self.end_to - self.end_from) * s for s in share]


class Decoded(NamedTuple):
    """Regions as they were filled in: the `answer` [B, L]; the regions before every step, `states`
    [S, B, L]; and for every place the `step` [B, L] that filled it in and the log-probability
    [B, L] that its token had there."""

    answer: Tensor
    states: Tensor
    step: Tensor
    log_prob: Tensor


@torch.no_grad()
def decode(
    predict: Predict,
    prompt: Tensor,
    length: int,
    mask: int,
    end: int,
    config: DecodingConfig,
    generator: torch.Generator,
) -> Decoded:
    """Fill in a masked region of `length` places after `prompt` [B, P]. Tokens are drawn at the
    temperature, log-probabilities are those of it (at 0 those of the plain distribution)."""
    rows, counts = len(prompt), config.counts(length)
    region = torch.full((rows, length), mask, dtype=prompt.dtype, device=prompt.device)
    states, step = [], torch.zeros_like(region)
    log_prob = torch.zeros(rows, length, device=prompt.device)
    factors = config.end_factors(len(counts))
    for index, count in enumerate(counts):
        states.append(region)
        logits = predict(prompt, region)
        token = drawn(logits, config.temperature, generator)
        confidence = chosen(logits.softmax(-1), token)
        confidence = torch.where(token == end, confidence * factors[index], confidence)
        if config.order == "random":
            confidence = torch.rand(confidence.shape, generator=generator, device=prompt.device)
        elif config.order == "left":
            confidence = -torch.arange(length, device=prompt.device).expand(rows, -1).to(confidence)
        confidence = confidence.masked_fill(region != mask, -torch.inf)
        places = confidence.topk(count, 1).indices
        filled = torch.zeros_like(region, dtype=torch.bool).scatter(1, places, True)
        region = torch.where(filled, token, region)
        step = step.masked_fill(filled, index)
        own = log_probs(logits, token, config.temperature)
        log_prob = torch.where(filled, own, log_prob)
    return Decoded(region, torch.stack(states), step, log_prob)


def drawn(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Tokens [B, L] from softmax(logits [B, L, V] / temperature); at 0 the likeliest."""
    if temperature == 0.0:
        return logits.argmax(-1)
    share = (logits / temperature).softmax(-1).flatten(0, 1)
    return torch.multinomial(share, 1, generator=generator).view(logits.shape[:-1])


def chosen(values: Tensor, token: Tensor) -> Tensor:
    return values.gather(-1, token[..., None])[..., 0]


def log_probs(logits: Tensor, token: Tensor, temperature: float) -> Tensor:
    """log-probabilities [B, L] of tokens at a temperature; at 0 those of the plain distribution."""
    return chosen((logits / (temperature or 1.0)).log_softmax(-1), token)
