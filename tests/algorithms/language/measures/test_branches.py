"""Conversations that branch, against what they say and by counting."""

from pathlib import Path

import pytest
import torch

from algorithms.language.measures import branches
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import continued, learner, lenient


def branching(**settings: int) -> LanguagePolicyGradient:
    agent = learner("guessing", "arpo", levels=(8,), turn_tokens=2, **{"group": 5} | settings)
    agent.task = lenient(agent.task)
    return agent


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_shared_steps_say_the_same(chance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "CHANCE", chance)
    monkeypatch.setattr(branches, "WEIGHT", 0.0)
    agent = branching()
    found = agent.sample_round()
    t = found.data
    assert t.groups["prompt"][:, 0].tolist() == [0] * 5 + [1] * 5
    node, shared, said = t.groups["node"], 0, set()
    for i in range(len(found)):
        at = t.mask[i].nonzero().flatten().tolist()
        names = [int(node[i, step]) for step in at]
        assert names == sorted(names)
        for step in at:
            said.add((int(node[i, step]), tuple(found.tokens[i, : step + 2].tolist())))
        for j in range(i):
            same = [step for step in at if node[i, step] == node[j, step] and t.mask[j, step]]
            shared += bool(same)
            assert same == at[: len(same)]  # a beginning
            if same:
                stop = same[-1] + 2
                assert torch.equal(found.tokens[i, :stop], found.tokens[j, :stop])
                assert torch.equal(
                    t.log_probs["behaviour"][i, same], t.log_probs["behaviour"][j, same]
                )
                turns = int(t.segments["turn"][i, same[-1]]) + 1
                assert found.turns[i][:turns] == found.turns[j][:turns]
    assert (shared > 0) == (chance > 0)
    assert agent.tokens["sampled"] == len(said)  # what is shared was said once
    torch.testing.assert_close(
        t.log_probs["old"][t.mask], t.log_probs["behaviour"][t.mask], rtol=1e-4, atol=1e-4
    )
    if chance == 1.0:  # of 3 that begin, 2 branch when they first can
        first = {(int(node[i, t.mask[i].nonzero()[0]]), i // 5) for i in range(10)}
        assert len(first) == 6


def test_ends_of_one_beginning_go_different_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "CHANCE", 1.0)
    found = branching(group=8).sample_round()
    texts = {tuple(turns) for turns in found.turns}
    assert len(texts) > len(found) / 2


def test_shared_steps_have_the_mean_of_their_advantages() -> None:
    agent = branching(group=6)
    agent.collect()
    assert agent.data is not None
    t, advantage = agent.data.rollouts.data, agent.data.estimate.advantage
    reward = torch.where(t.mask, t.reward, 0.0).sum(1)
    z = torch.cat([(r - r.mean()) / (r.std() + 1e-4) for r in reward.split(6)])
    node = t.groups["node"]
    for i, step in t.mask.nonzero().tolist():
        own = [j for j in range(len(z)) if bool((t.mask[j] & (node[j] == node[i, step])).any())]
        wanted = float(z[own].mean())
        assert float(advantage[i, step]) == pytest.approx(wanted, abs=2e-3)


def test_rounds_that_branch_resume_exactly(tmp_path: Path) -> None:
    continued(branching(), tmp_path, 1, 1)


def test_one_turn_has_nowhere_to_branch() -> None:
    with pytest.raises(ConfigError, match="branches after observations, and addition has none"):
        learner("addition", "arpo")


def test_branches_are_no_other_kind_of_round() -> None:
    with pytest.raises(ConfigError, match="has rounds of its own, of conversations that branch"):
        LanguageConfig(task="guessing", recipe="arpo", pool=8, scheduler="vade")
    with pytest.raises(ConfigError, match="rounds of its own"):
        LanguageConfig(task="guessing", recipe="arpo", templates=2)
