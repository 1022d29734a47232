"""A language model that may say only what another one finds likely."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Parameter

from algorithms.language.models.protocol import LanguageModel
from mbrl.policy_gradient.measures.action_masks import top_p


@dataclass
class Pair:
    """The caches of the model and of its guide, which have the same columns."""

    model: Any
    guide: Any

    @property
    def used(self) -> int:
        used: int = self.model.used
        return used

    def select(self, rows: Tensor) -> Self:
        return type(self)(self.model.select(rows), self.guide.select(rows))

    def put_back(self, part: Self, rows: Tensor) -> None:
        self.model.put_back(part.model, rows)
        self.guide.put_back(part.guide, rows)


class Restricted:
    """`model` for sampling, with logits of -inf for tokens outside the likeliest ones of `guide`
    that together have the probability `share`, both at `temperature`."""

    def __init__(
        self, model: LanguageModel, guide: LanguageModel, share: float, temperature: float
    ) -> None:
        self.model, self.guide, self.share, self.temperature = model, guide, share, temperature
        self.size = model.size

    def __call__(self, tokens: Tensor) -> Tensor:
        return self.barred(self.model(tokens), self.guide(tokens))

    def logits_at(self, tokens: Tensor, here: Tensor) -> Tensor:
        return self.barred(self.model.logits_at(tokens, here), self.guide.logits_at(tokens, here))

    def features(self, tokens: Tensor) -> Tensor:
        """Those of the model."""
        return self.model.features(tokens)

    def read(self, features: Tensor) -> Tensor:
        """Logits of the model, of which none are barred."""
        return self.model.read(features)

    def cache(self, rows: int, capacity: int) -> Pair:
        return Pair(self.model.cache(rows, capacity), self.guide.cache(rows, capacity))

    def extend(self, tokens: Tensor, real: Tensor, cache: Pair) -> Tensor:
        logits = self.model.extend(tokens, real, cache.model)
        return self.barred(logits, self.guide.extend(tokens, real, cache.guide))

    def barred(self, logits: Tensor, guide: Tensor) -> Tensor:
        allowed = top_p(guide / self.temperature, self.share)
        return logits.masked_fill(~allowed, -torch.inf)

    def parameters(self) -> Iterator[Parameter]:
        return self.model.parameters()

    def state_dict(self) -> dict[str, Any]:
        return self.model.state_dict()
