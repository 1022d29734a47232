"""Votes that fork, and answers after solved examples."""

from pathlib import Path

import pytest
import torch

from algorithms.language.imitation import Imitation, ImitationConfig
from algorithms.language.measures.answers import Majority, meaning
from algorithms.language.measures.forks import ForkedVotes
from algorithms.language.measures.seeds import SeededAttempts
from algorithms.language.policy_gradient import LanguageConfig
from algorithms.language.prompts import prompt_features
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.prefixes import PREFIX
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import (
    MODEL,
    continued,
    kept_rows,
    learner,
    lenient,
    part_of,
    rounds,
    scripted,
)


@pytest.mark.parametrize(("group", "whole"), [(8, 2), (4, 1), (3, 1), (1, 1)])
def test_votes_fork_at_the_most_uncertain_tokens(group: int, whole: int) -> None:
    agent = learner("chain", "ettrl", prompts=3, group=group, turn_tokens=9)
    rows, part = kept_rows(agent), part_of(agent, ForkedVotes)
    found = agent.sample_round()
    said, other, count = 0, 0, 0
    for i in range(3):
        own = rows[i * group : (i + 1) * group]
        trunks, forks = own[:whole], own[whole:]
        assert all(not row.origins for row in trunks)
        for n, fork in enumerate(forks):
            trunk = trunks[n % whole]
            start, stop = trunk.spans[0]
            with torch.no_grad():
                log_p = agent.model(torch.tensor([trunk.tokens]))[0].double().log_softmax(-1)
            entropy = [-float((p.exp() * p).sum()) for p in log_p[start - 1 : stop - 1]]
            ranked = sorted(range(len(entropy)), key=lambda j: -entropy[j])
            place = start + ranked[n // whole % 2]  # twice at the first two
            assert fork.tokens[:place] == trunk.tokens[:place]
            covered = [(a, b) for a, b, who in fork.origins if who == PREFIX]
            assert covered == ([(start, place)] if place > start else [])
            mask = found.data.mask[i * group + whole + n]
            assert mask.nonzero().flatten().tolist() == list(range(place - 1, fork.spans[0][1] - 1))
            said += fork.spans[0][1] - place
            other += meaning(fork.turns[-1]) != meaning(trunk.turns[-1])
            count += 1
        said += sum(row.spans[0][1] - row.spans[0][0] for row in trunks)
    assert agent.tokens["sampled"] == said
    assert part.acts == pytest.approx(other / max(1, count))


def test_all_ends_vote() -> None:
    agent = learner("chain", "ettrl", prompts=2, group=4, turn_tokens=3)
    found = part_of(agent, Majority).measure(agent.sample_round())
    for i in range(2):
        rows = range(4 * i, 4 * i + 4)
        said = [meaning(found.turns[j][-1]) for j in rows]
        most = max(said, key=lambda x: (said.count(x), -said.index(x)))
        reward = found.data.signals["majority_reward"][:, 0]
        assert [float(reward[j]) for j in rows] == [float(x == most) for x in said]
    with pytest.raises(ConfigError, match="votes on answers, and a turn of guessing is none"):
        LanguageConfig(task="guessing", recipe="ettrl")


def seeded(**settings: int) -> tuple:
    agent = learner("addition", "xrpo_seeded", **{"prompts": 3, "group": 4} | settings)
    return agent, part_of(agent, SeededAttempts), kept_rows(agent)


def test_failed_prompts_are_tried_after_the_nearest_example() -> None:
    agent, part, rows = seeded()
    part.pool = {"9+9=": "18", "10+10=": "20"}
    problems = [agent.problem(i) for i in range(3)]
    solved = problems[1].prompt

    def speak(row: Conversation) -> str:
        shown = len(row.tokens) > len(agent.codec.opening(row.problem.prompt))
        right = row.problem.prompt == solved or shown
        return str(row.problem.facts["answer"]) if right else "x"

    scripted(agent, speak)
    found = agent.sample_round()
    assert part.acts == 1.0
    aided = found.data.signals["aided"][:, 0].tolist()
    assert aided == [0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1]
    for i, row in enumerate(rows):
        text = row.problem.prompt
        if aided[i]:
            own = prompt_features(text)
            near = max(("9+9=", "10+10="), key=lambda p: float(own @ prompt_features(p)))
            answer = {"9+9=": "18", "10+10=": "20"}[near]
            text = f"{near}{answer}#{text}"
        assert row.tokens[: row.spans[0][0]] == agent.codec.opening(text)
    groups = found.data.groups["prompt"][:, 0].tolist()
    assert groups == [0] * 4 + [1] * 4 + [2] * 4
    assert set(part.pool) == {"9+9=", "10+10=", *(p.prompt for p in problems)}
    # Of its own successes only what was said without an example counts.
    agent.take_in(found)
    assert float(agent.of_round["rollout/success"]) == pytest.approx(4 / 8)


def test_without_successes_there_is_nothing_to_show() -> None:
    agent, part, rows = seeded()
    scripted(agent, lambda row: "x")
    agent.sample_round()
    assert part.acts == 0.0 and not part.pool
    assert all(row.tokens[: row.spans[0][0]] == agent.codec.opening(row.problem.prompt)
               for row in rows)  # fmt: skip


def test_the_pool_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("algorithms.language.measures.seeds.POOL", 2)
    agent, part, _ = seeded(prompts=4)
    scripted(agent, lambda row: str(row.problem.facts["answer"]))
    agent.sample_round()
    assert list(part.pool) == [agent.problem(i).prompt for i in (2, 3)]


def test_demonstrations_after_examples() -> None:
    taught = Imitation(None, ImitationConfig(task="addition", model=MODEL, rows=400, shots=0.5))
    batch, shown = taught.next_batch(), 0
    for problem, tokens in zip(batch.problems, batch.tokens.tolist(), strict=True):
        text = taught.codec.decode(tokens[1 : tokens.index(2)])
        if text != problem.prompt:
            example, _, rest = text.partition("#")
            left, _, right = example.partition("=")
            assert rest == problem.prompt and eval(left) == int(right)
            shown += 1
    assert shown / 400 == pytest.approx(0.5, abs=0.1)
    with pytest.raises(ConfigError, match="examples are for tasks of one turn"):
        ImitationConfig(task="guessing", shots=0.5)


@pytest.mark.parametrize("recipe", ["ettrl", "xrpo_seeded"])
def test_they_resume_exactly(recipe: str, tmp_path: Path) -> None:
    agent = learner("addition", recipe, turn_tokens=4, group=4)
    agent.task = lenient(agent.task)
    continued(agent, tmp_path, 2, 1, rounds)


def test_half_of_one_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match="group is 1: recipe xrpo_seeded samples half of it"):
        learner("addition", "xrpo_seeded", group=1, minibatches=1)
