"""Rounds with conversations of earlier policies."""

from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.schedule import check_plain
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import continued, learner, lenient, log_probs


def mixing(**settings: Any) -> LanguagePolicyGradient:
    base = {"prompts": 4, "group": 2, "minibatches": 1, "learning_rate": 0.03, "warm_up": 0}
    agent = learner("guessing", "remix", levels=(8,), turn_tokens=2, **base | settings)
    agent.task = lenient(agent.task)
    return agent


def test_half_of_the_groups_are_of_earlier_policies() -> None:
    agent = mixing(mixed_rounds=3)
    models: dict[int, dict[str, torch.Tensor]] = {}
    for number in range(5):
        models[agent.updates] = {k: v.clone() for k, v in agent.model.state_dict().items()}
        left = agent.collect()
        assert agent.data is not None
        t, tokens = agent.data.rollouts.data, agent.data.rollouts.tokens
        again = t.signals["replayed"][:, 0]
        old = 2 if 0 < number < 3 else 0
        assert int(again.sum()) == 2 * old and len(again) == 8
        assert len(set(t.groups["prompt"][:, 0].tolist())) == 4
        assert t.policy_version is not None
        kept = {k: v.clone() for k, v in agent.model.state_dict().items()}
        for i, step in t.mask.nonzero().tolist():
            version = int(t.policy_version[i, step])
            assert (version < agent.updates) == bool(again[i])
            agent.model.load_state_dict(models[version])  # each by the policy that said it
            row = tokens[i].tolist()
            (wanted,) = log_probs(agent.model, row[: step + 1], [row[step + 1]])
            found = float(t.log_probs["behaviour"][i, step])
            assert found == pytest.approx(wanted, abs=1e-3)
        agent.model.load_state_dict(kept)
        base = models[agent.updates if number == 3 else 3 if number > 3 else 0]
        reference = agent.anchors["reference"].state_dict()
        assert all(torch.equal(reference[k], v) for k, v in base.items())
        for _ in range(left):
            agent.update(agent.next_batch())


def test_mixed_rounds_resume_exactly(tmp_path: Path) -> None:
    continued(mixing(replay=3), tmp_path, 3, 2)


def test_what_does_not_go_together() -> None:
    with pytest.raises(ConfigError, match="scheduler and recipe remix are each another kind"):
        LanguageConfig(recipe="remix", scheduler="vade", pool=8)
    with pytest.raises(ConfigError, match=r"mixed_share is 1\.5, it must lie in \[0, 1\]"):
        LanguageConfig(recipe="remix", mixed_share=1.5)
    with pytest.raises(ConfigError, match="a recipe that mixes in earlier ones"):
        check_plain(LanguageConfig(recipe="remix"), "workers", "leave workers at 0")
