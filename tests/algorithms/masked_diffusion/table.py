"""A masked model whose distributions are a table, so that everything about it can be enumerated."""

import torch
from torch import Tensor

LENGTH, LETTERS = 3, 2  # places, and tokens 0 .. LETTERS - 1
MASK, END = LETTERS, 1
PROMPT = torch.zeros(1, 1, dtype=torch.int64)


class Table:
    """Logits [B, LENGTH, LETTERS] of every region, drawn once."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(
            (LETTERS + 1) ** LENGTH, LENGTH, LETTERS, generator=generator, dtype=torch.double
        )

    def __call__(self, prompt: Tensor, region: Tensor) -> Tensor:
        base = (LETTERS + 1) ** torch.arange(LENGTH)
        return self.logits[(region * base).sum(1)]

    def probability(self, region: list[int], place: int, token: int) -> float:
        logits = self(PROMPT, torch.tensor([region]))
        return float(logits[0, place].softmax(-1)[token])
