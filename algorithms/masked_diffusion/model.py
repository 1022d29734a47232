"""A text model that fills in masks: it reads a prompt and a region of fixed length, any tokens of
which are masked, and gives a distribution for each place."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from algorithms.language.models.transformer import Transformer, TransformerConfig
from algorithms.language.models.vocabulary import Characters
from algorithms.language.tasks.base import Problem, TextTask
from mbrl.config import Settings
from mbrl.errors import ConfigError, DataError


@dataclass(frozen=True)
class MaskedModelConfig(Settings):
    """Sizes of the model."""

    transformer: TransformerConfig = field(
        default_factory=lambda: TransformerConfig(width=64, layers=2, heads=4, hidden=172)
    )


class Layout:
    """A task's problems as rows of tokens: the prompt, right up to its end, in `prompt` columns,
    then a region of `answer` columns, which an answer fills up with end tokens. Raises
    `ConfigError` for a task of several turns."""

    def __init__(self, task: TextTask) -> None:
        if task.max_turns > 1:
            raise ConfigError(
                f"task {task.name} has up to {task.max_turns} turns; a masked model answers in one "
                "turn, such as those of arithmetic, sorting and brackets"
            )
        self.task, self.codec = task, Characters()
        self.prompt, self.answer = task.prompt_length + 2, task.turn_length + 1
        self.mask = self.codec.size  # the token that stands for a mask
        self.size = self.codec.size + 1

    def prompts(self, problems: Sequence[Problem]) -> Tensor:
        """[B, prompt], padded on the left."""
        rows = torch.full((len(problems), self.prompt), self.codec.pad)
        for row, problem in zip(rows, problems, strict=True):
            tokens = self.codec.opening(problem.prompt)
            row[len(row) - len(tokens) :] = torch.tensor(tokens)
        return rows

    def answers(self, texts: Sequence[str]) -> Tensor:
        """[B, answer] of the texts, with end tokens after them. Raises `DataError` for a text that
        is longer than the region."""
        rows = torch.full((len(texts), self.answer), self.codec.end)
        for row, text in zip(rows, texts, strict=True):
            tokens = self.codec.encode(text)
            if len(tokens) > self.answer:
                raise DataError(
                    f"{text!r} has {len(tokens)} characters, the region of {self.task.name} "
                    f"{self.answer} places"
                )
            row[: len(tokens)] = torch.tensor(tokens, dtype=row.dtype)
        return rows

    def texts(self, answers: Tensor) -> list[str]:
        """What stands before the first end token of every row [B, answer]."""
        texts = []
        for row in answers.tolist():
            end = row.index(self.codec.end) if self.codec.end in row else len(row)
            texts.append(self.codec.decode([min(t, self.codec.size) for t in row[:end]]))
        return texts

    def rewards(self, problems: Sequence[Problem], answers: Tensor) -> Tensor:
        """[B]: 1 where the answer solves the problem."""
        replies = zip(problems, self.texts(answers), strict=True)
        return torch.tensor([float(self.task.reply(p, [text]).success) for p, text in replies])


class MaskedModel(nn.Module):
    """Logits for every place of a region, given the prompt and what of the region is not masked.
    A mask has no logit: it is never what stands somewhere."""

    def __init__(
        self,
        layout: Layout,
        config: MaskedModelConfig | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.config, self.mask = config or MaskedModelConfig(), layout.mask
        self.network = Transformer(layout.size, self.config.transformer, generator, causal=False)

    def forward(self, prompt: Tensor, region: Tensor) -> Tensor:
        """Logits [B, L, V], V without the mask, of `prompt` [B, P] and `region` [B, L]."""
        features = self.network.features(torch.cat([prompt, region], 1))
        logits: Tensor = self.network.read(features[:, prompt.shape[1] :])
        return logits[..., : self.mask]
