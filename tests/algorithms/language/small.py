"""A tiny model and a task of turns for the tests of the language learners."""

import random
from collections.abc import Sequence

import torch

from algorithms.language.learner import ModelConfig
from algorithms.language.models.transformer import Transformer, TransformerConfig
from algorithms.language.models.vocabulary import Characters
from algorithms.language.tasks.base import Problem, Reply, TextTask

TINY = TransformerConfig(width=16, layers=2, heads=2, hidden=24)
MODEL = ModelConfig(transformer=TINY)


class Digits(TextTask):
    """Say digits until the secret one was said, in at most three turns."""

    name = "digits"
    splits = False
    title = "find a digit"
    levels = (4, 9)
    trained = (4,)
    max_turns = 3
    turn_length = 2
    prompt_length = 8

    def draw(self, level: int, rng: random.Random) -> Problem:
        return Problem(f"0-{level}", level, {"secret": rng.randint(0, level)}, state="new")

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        if turns[-1] == str(problem.facts["secret"]):
            return Reply(1.0, True, True)
        over = len(turns) == self.max_turns
        return Reply(0.0, over, False, "" if over else "no", "seen " + "".join(sorted(turns)))

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return str(problem.facts["secret"])


class Echo(TextTask):
    """Say the digit that was shown. Who shows how it is done says any digit."""

    name = "echo"
    splits = False
    title = "repeat a digit"
    levels = (2, 4)
    trained = (4,)
    turn_length = 2
    prompt_length = 1

    def draw(self, level: int, rng: random.Random) -> Problem:
        return Problem(str(rng.randrange(level)), level)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        right = turns[-1] == problem.prompt
        return Reply(float(right), True, right)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return str(rng.randrange(problem.level))


def tiny(dtype: torch.dtype = torch.float64, wide: float = 8.0) -> Transformer:
    """A model whose choices differ much: weights `wide` times those of a new one."""
    model = Transformer(Characters.size, TINY, torch.Generator().manual_seed(3)).to(dtype)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(wide)
    return model
