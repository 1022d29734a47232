"""The tasks for pretrained models: what is right, and what is held out."""

import random

import pytest

from algorithms.language.tasks import TASKS
from algorithms.language.tasks.story import sentences_with

STORY, LARGER = TASKS["story"], TASKS["larger"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("The dog ran. Tom saw the dog!", 2),
        ("The dog ran. The dog ran.", 1),  # the same sentence again
        ("The dog ran. Tom saw the dog", 1),  # not ended
        ("A dog. The dogs ran far.", 0),  # two words; another word
        ("One two three four five six seven eight nine ten eleven dog.", 1),
        ("One two three four five six seven eight nine ten eleven twelve dog.", 0),
        ("", 0),
    ],
)
def test_sentences_count_by_their_words(text: str, count: int) -> None:
    assert len(sentences_with("dog", text)) == count


@pytest.mark.parametrize("level", STORY.levels)
def test_a_story_is_right_from_its_level_on(level: int) -> None:
    for seed in range(20):
        problem = STORY.problem(level, random.Random(seed))
        assert 0 < len(problem.prompt) <= STORY.prompt_length
        story = STORY.demonstration(problem, [], random.Random(seed))
        assert len(story) <= 3 * STORY.turn_length  # characters; the limit is of tokens
        reply = STORY.reply(problem, [story])
        assert reply.done and reply.success and reply.reward == 1
        less = story.rpartition(" The ")[0] if level == 1 else story[: story.rindex(".", 0, -1)]
        assert STORY.reply(problem, [less]).reward == 0


def test_what_is_held_out_is_so_at_every_level_and_in_every_order() -> None:
    prompts = {
        held: {
            STORY.problem(level, random.Random(f"{level} {i}"), held_out=held).prompt
            for level in STORY.levels
            for i in range(1500)
        }
        for held in (True, False)
    }
    assert not prompts[True] & prompts[False] and len(prompts[True]) > 200
    pairs = {
        held: {LARGER.problem(2, random.Random(i), held_out=held).family for i in range(2000)}
        for held in (True, False)
    }
    assert not pairs[True] & pairs[False] and len(pairs[True]) > 200
