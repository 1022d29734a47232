"""Which weights a run moved, on changes that are known, and training of a subnetwork alone."""

import math
from pathlib import Path

import pytest
import torch

from algorithms.language import subnetwork
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from mbrl import checkpoint
from mbrl.errors import CheckpointError, ConfigError
from tests.algorithms.language.cases import MODEL, continued, learner, lenient, rounds


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_known_share_moves_and_tolerances_count() -> None:
    before = {"a": torch.ones(40, 50), "b": torch.zeros(10)}
    after = {k: v.clone() for k, v in before.items()}
    after["a"][:10] += 1e-3  # 500 of 2010
    after["a"][10:14] += 1e-6  # 200: below the tolerance, and below bfloat16 at 1
    after["b"][0] = 1e-6  # of 0 bfloat16 keeps it
    assert subnetwork.share(subnetwork.moved(before, after)) == 701 / 2010
    assert subnetwork.share(subnetwork.moved(before, after, 1e-5)) == 500 / 2010
    # 1 + 1e-3 rounds to 1: next to 1 bfloat16 has steps of 1/128.
    assert subnetwork.share(subnetwork.moved(before, after, bfloat16=True)) == 1 / 2010
    after["a"][:10] += 1e-2
    assert subnetwork.share(subnetwork.moved(before, after, bfloat16=True)) == 501 / 2010


def test_the_rank_of_a_change() -> None:
    g = generator(0)
    before = {"a": torch.randn(30, 20, generator=g, dtype=torch.float64), "b": torch.zeros(3)}
    low = torch.randn(30, 2, generator=g, dtype=torch.float64) @ torch.randn(
        2, 20, generator=g, dtype=torch.float64
    )
    after = {"a": before["a"] + low, "b": before["b"] + 1}
    assert subnetwork.ranks(before, after) == {"a": 2 / 20}
    full = {"a": torch.randn(30, 20, generator=g, dtype=torch.float64), "b": before["b"]}
    assert subnetwork.ranks(before, full) == {"a": 1.0}
    assert subnetwork.ranks(before, before) == {"a": 0.0}


def test_overlap_and_what_chance_would_bring() -> None:
    one = {"a": torch.tensor([1, 1, 0, 0]).bool(), "b": torch.zeros(6).bool()}
    two = {"a": torch.tensor([0, 1, 1, 1]).bool(), "b": torch.tensor([1, 0, 0, 0, 0, 0]).bool()}
    # One in both of two and four; evenly from ten: 2 * 4 / 10; from the matrix of four: 2 * 3 / 4.
    assert subnetwork.overlap(one, two) == pytest.approx((1 / 2, 0.8 / 2, 1.5 / 2))
    empty = {k: v & False for k, v in one.items()}
    assert all(math.isnan(x) for x in subnetwork.overlap(one, empty))
    drawn = [{"a": torch.rand(200, 200, generator=generator(i)) < 0.3} for i in range(2)]
    real, chance, _ = subnetwork.overlap(*drawn)
    assert real == pytest.approx(chance, abs=0.02)


def test_two_models_are_not_compared() -> None:
    with pytest.raises(ConfigError, match="of two models"):
        subnetwork.moved({"a": torch.zeros(2)}, {"a": torch.zeros(3)})


def masked(path: Path) -> LanguagePolicyGradient:
    plain = learner("addition", "grpo", levels=(1,))
    sets = {
        name: torch.rand(p.shape, generator=generator(i)) < 0.3
        for i, (name, p) in enumerate(plain.model.named_parameters())
    }
    subnetwork.write(sets, path)
    agent = learner("addition", "grpo", levels=(1,), subnetwork=str(path), turn_tokens=3)
    agent.task = lenient(agent.task)
    return agent


def test_a_subnetwork_moves_alone_and_resumes(tmp_path: Path) -> None:
    agent = masked(tmp_path / "mask.pt")
    before = {k: p.detach().clone() for k, p in agent.model.named_parameters()}
    again = continued(agent, tmp_path, 2, 2)
    sets = checkpoint.load(tmp_path / "mask.pt")["weights"]
    changed = subnetwork.moved(before, {k: p.detach() for k, p in again.model.named_parameters()})
    assert all(not (changed[k] & ~sets[k]).any() for k in sets)
    assert subnetwork.count(changed) > 0.5 * subnetwork.count(sets)


def test_a_mask_of_ones_changes_nothing(tmp_path: Path) -> None:
    agents = [learner("addition", "grpo", levels=(1,), turn_tokens=3)]
    sets = {n: torch.ones(p.shape) > 0 for n, p in agents[0].model.named_parameters()}
    subnetwork.write(sets, tmp_path / "all.pt")
    settings = {"levels": (1,), "turn_tokens": 3, "subnetwork": str(tmp_path / "all.pt")}
    agents.append(learner("addition", "grpo", **settings))
    for agent in agents:
        agent.task = lenient(agent.task)
        rounds(agent, 2)
    pairs = zip(agents[0].model.parameters(), agents[1].model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    config = LanguageConfig(model=MODEL, subnetwork=str(tmp_path / "none.pt"))
    with pytest.raises(ConfigError, match="is no file"):
        LanguagePolicyGradient(config=config)
    subnetwork.write({"a": torch.zeros(2)}, tmp_path / "none.pt")
    with pytest.raises(ConfigError, match="of another model"):
        LanguagePolicyGradient(config=config)
    (tmp_path / "none.pt").write_bytes((tmp_path / "none.pt").read_bytes()[:300])
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        LanguagePolicyGradient(config=config)
