"""Going on with a story so that its thing is named, in whole sentences."""

import random
import re
from collections.abc import Sequence
from typing import ClassVar

from algorithms.language.tasks.base import Problem, Reply, TextTask
from algorithms.language.tasks.grading import last

CHILDREN = "Tom Lily Ben Sue Mia Tim Sam Anna Max Lucy Amy Jack Sara Bob Tina Leo Emma Joe Kate Dan"
LOOKS = "big small red blue new old nice funny soft green tall shiny"
THINGS = "dog cat ball tree bird car fish boat cake hat frog bear box flower toy book bee duck kite"
THINGS += " truck apple door rock bug"
SHORTEST, LONGEST = 3, 12  # words of a sentence that counts


class Story(TextTask):
    """A child saw a thing. The story is right if `level` different sentences of 3 to 12 words name
    the thing. The level is not in the prompt; a problem is held out at all levels or at none."""

    name = "story"
    title = "a story that names its thing in whole sentences"
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3)
    trained: ClassVar[tuple[int, ...]] = (1, 2)
    turn_length = 63
    prompt_length = 28
    open_text = True

    def draw(self, level: int, rng: random.Random) -> Problem:
        child, look, thing = (rng.choice(x.split()) for x in (CHILDREN, LOOKS, THINGS))
        prompt = f"{child} saw a {look} {thing}."
        return Problem(prompt, level, {"thing": thing, "sentences": level}, family=prompt)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        naming = sentences_with(problem.facts["thing"], turns[-1])
        return last(len(naming) >= problem.facts["sentences"])

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        thing = problem.facts["thing"]
        sentences = [
            f"The {thing} was {rng.choice(LOOKS.split())}.",
            f"They played with the {thing}.",
            f"The {thing} was happy.",
        ]
        return " ".join(sentences[: problem.facts["sentences"]])


def sentences_with(word: str, text: str) -> set[str]:
    """The different sentences of `text` with 3 to 12 words, of which `word` is one; what stands
    after the last end of a sentence is none."""
    sentences = {part.strip() for part in re.split(r"(?<=[.!?])", text)}
    named = re.compile(rf"\b{re.escape(word)}\b")
    return {
        s
        for s in sentences
        if s.endswith((".", "!", "?")) and SHORTEST <= len(s.split()) <= LONGEST and named.search(s)
    }
