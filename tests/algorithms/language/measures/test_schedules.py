"""What changes as training goes on: shares, contrasts, phases."""

import math
from pathlib import Path

import pytest
import torch

from algorithms.language.measures.attempts import Attempts, RightLengths
from algorithms.language.measures.schedules import EntropyPhase, FadingContrast, GrowingShare
from algorithms.language.policy_gradient import LanguageConfig
from algorithms.language.tasks import Problem
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import continued, learner, lenient, part_of, rounds, told


def test_shares_grow_and_contrasts_fade() -> None:
    shares, weights = learner("addition", "d3s", ramp_rounds=4), []
    part = part_of(shares, GrowingShare)
    for step in range(7):
        shares.step = step
        found = part.measure(shares.sample_round())
        assert found.data.signals["schedule"].unique().tolist() == [min(1.0, step / 4)]
        assert part.acts == pytest.approx(1 - min(1.0, step / 4))
    fading = learner("rating", "q_hawkeye", ramp_rounds=5)
    for step in range(7):
        fading.step = step
        found = part_of(fading, FadingContrast).measure(fading.sample_round())
        (weight,) = found.data.signals["contrast_weight"].unique().tolist()
        weights.append(weight)
    wanted = [0.5 + 0.5 * math.cos(math.pi * k / 5) for k in range(6)]
    assert weights == pytest.approx([*wanted, 0.0], abs=1e-6)


def test_all_is_kept_at_the_end_of_the_schedule() -> None:
    agent = learner("addition", "d3s", ramp_rounds=1)
    agent.task = lenient(agent.task)
    kept = []
    for step in range(2):
        agent.step = step
        batch = agent.estimated(agent.sample_round())
        kept.append(float(batch.estimate.weight.sum() / batch.data.mask.sum()))
    assert kept[0] <= 0.6 and kept[1] == 1.0


def test_the_phase_begins_with_a_history_and_late_turns() -> None:
    agent = learner("guessing", "epo_hinge", levels=(8,), turn_tokens=3)
    part = part_of(agent, EntropyPhase)
    agent.estimated(agent.sample_round())
    assert part.acts == 0.0
    agent.step = 1
    batch = agent.estimated(agent.sample_round())
    t = batch.data
    longest = max(len(row) for row in batch.rollouts.turns)
    weight = 1 - 0.2 * (1 - math.exp(-4 / 150)) if longest >= 4.5 else 0.0
    assert t.signals["entropy_phase"].unique().tolist() == pytest.approx([weight])
    past, now = t.signals["entropy_history"], t.entropy
    steps = [(float(now[i]), float(past[i])) for i in map(tuple, t.mask.nonzero().tolist())]
    outside = [h < 0.8 * p or h > 1.2 * p for h, p in steps]
    assert part.acts == pytest.approx(weight * sum(outside) / len(outside))
    for row in batch.rollouts.turns:
        assert len(row) <= 4 or weight > 0
    short = told(agent, [(Problem("guess 3-10 in 4", 8, FACTS, state="3-10"), ["5"])])
    agent.estimated(short)
    assert part.acts == 0.0


FACTS = {"low": 3, "high": 10, "sought": 5, "limit": 4}


def test_attempts() -> None:
    agent = learner("kernels", "score")
    part, problem = part_of(agent, Attempts), Problem("5x in 4", 7, {"n": 5})
    found = told(agent, [(problem, turns) for turns in (["dda", "d", "d"], ["d", "d", "dda"])])
    assert part.measure(found) is found and part.acts == 0.5
    with pytest.raises(ConfigError, match="several attempts, and addition has one turn"):
        LanguageConfig(task="addition", recipe="score_first_stage")


def test_a_first_attempt_is_worth_what_the_second_earns() -> None:
    """In the first stage; its own reward counts nothing. In the second it is worth its own."""
    problem, advantages = Problem("5x in 4", 7, {"n": 5}), {}
    chats = [["dda", "d", "d"], ["d", "dda", "d"], ["d", "d", "d"]]
    for recipe in ("score_first_stage", "score"):
        agent = learner("kernels", recipe)
        batch = agent.estimated(told(agent, [(problem, turns) for turns in chats]))
        turn, first = batch.data.segments["turn"], batch.data.mask.int().argmax(1)
        assert bool((turn[torch.arange(3), first] == 0).all())
        advantages[recipe] = batch.estimate.advantage[torch.arange(3), first].tolist()
    (r,) = {reply.reward for reply in [agent.task.reply(problem, ["dda"])]}
    assert r > 0
    assert advantages["score_first_stage"] == pytest.approx([-r / 2, r, -r / 2])
    assert advantages["score"] == pytest.approx([r, -r / 2, -r / 2])


def test_right_answers_that_are_longer() -> None:
    agent = learner("chain", "rose_length_aware")
    problem, other = (
        Problem(f"{text}=", 2, {"expression": text, "answer": 6}) for text in ("1+2+3", "2+2+2")
    )
    said = [(problem, [x]) for x in ("6", "1+2=3;3+3=6;6", "3+3=6;6", "7")]
    said += [(other, ["6"]), (other, ["6"])]
    part = part_of(agent, RightLengths)
    found = told(agent, said)
    assert part.measure(found) is found and part.acts == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    ("recipe", "task"),
    [
        ("epo_hinge", "guessing"),
        ("d3s", "addition"),
        ("q_hawkeye", "rating"),
        ("rose_length_aware", "chain"),
        ("score_first_stage", "kernels"),
        ("hapo", "addition"),
        ("urpa", "intervals"),
    ],
)
def test_they_resume_exactly(recipe: str, task: str, tmp_path: Path) -> None:
    agent = learner(task, recipe, turn_tokens=3, minibatches=1, ramp_rounds=3)
    agent.task = lenient(agent.task)
    continued(agent, tmp_path, 2, 1, rounds)
