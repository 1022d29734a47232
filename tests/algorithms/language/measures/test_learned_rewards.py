"""Progress and flaws that are learned, by hand; all that is learned resumes exactly."""

import math
from pathlib import Path

import pytest

from algorithms.language.measures import utterances
from algorithms.language.measures.critics import Progress
from algorithms.language.measures.flaws import Flawed
from algorithms.language.tasks.base import Problem
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import (
    continued,
    ends,
    features,
    learner,
    lenient,
    part_of,
    shake,
    starts,
    told,
    whole,
)


def test_progress_is_read_after_every_turn_and_sums_to_the_reward() -> None:
    agent = learner("guessing", "spa_rl")
    part = part_of(agent, Progress)
    shake(part.heads, 6)
    problem = Problem("guess 1-8 in 4", 8, {"low": 1, "high": 8, "sought": 3, "limit": 4})
    chats = [["5", "x", "3"], ["5", "5", "2", "1"], ["3"], ["?", "7", "3"]]
    found = told(agent, [(problem, chat) for chat in chats])
    signals = part.measure(found).data.signals
    values = ends(found, signals["progress"])
    for i, row in enumerate(values):
        texts = [found.tokens[i, :stop].tolist() for _, stop in starts(found, i)]
        wanted = [float(features(part.heads, text)[0]) for text in texts]
        assert row == pytest.approx(wanted, abs=1e-4)
    grounding = [[float(turn.isdigit()) for turn in chat] for chat in chats]
    assert ends(found, signals["grounding"]) == grounding
    errors = [sum(row) - won for row, won in zip(values, (1, 0, 1, 1), strict=True)]
    loss = part.learn(found, {})["progress/loss"]
    assert float(loss) == pytest.approx(sum(e**2 for e in errors) / 4, rel=1e-3)
    part.optimisers["progress"].param_groups[0]["lr"] = 1e-2
    for _ in range(60):
        part.learn(found, {})
    sums = [sum(row) for row in ends(found, part.measure(found).data.signals["progress"])]
    assert sums == pytest.approx([1, 0, 1, 1], abs=0.1)


def test_what_a_turn_must_tell_for_progress() -> None:
    with pytest.raises(ConfigError, match=r"addition do not tell; a task that does: .*guessing"):
        learner("addition", "spa_rl")


def test_a_detector_learns_flaws_from_the_program() -> None:
    agent = learner("chain", "fapo", flaws="learned", part_rate=1e-2)
    part = part_of(agent, Flawed)
    problem = Problem("3+4*2=", 2, {"expression": "3+4*2", "answer": 11})
    turns = ["4*2=8;3+8=11;11", "4*2=6;3+8=11;11", "11", "3+8=11;4*2=8;11"]
    labels = [0.0, 1.0, 0.0, 1.0]
    found = told(agent, [(problem, [turn]) for turn in turns])
    before = whole(found, part.measure(found).data.signals["flawed"])
    assert before == pytest.approx([0.5] * 4)  # it flags nothing yet
    targets = part.targets(found)
    assert whole(found, targets["flawed"]) == labels
    loss = float(part.learn(found, targets)["flaws/loss"])
    assert loss == pytest.approx(math.log(2), rel=1e-4)
    for _ in range(40):
        part.learn(found, targets)
    after = whole(found, part.measure(found).data.signals["flawed"])
    assert [float(p > 0.5) for p in after] == labels


@pytest.mark.parametrize("case", ["ppo", "vtrace", "archer", "nlpo", "alp", "spa_rl", "fapo"])
def test_they_resume_exactly(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utterances, "WARM_UP", 0)
    monkeypatch.setattr(utterances, "STEPS", 2)
    if case == "fapo":
        agent = learner("chain", case, flaws="learned", turn_tokens=3)
    else:
        agent = learner("guessing", case, levels=(8,), turn_tokens=3)
    agent.task = lenient(agent.task)
    continued(agent, tmp_path, 2, 1)
