"""Rounds of fine-tuning on two numbers whose sum is the reward."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from algorithms.diffusion_rl import DiffusionFinetuning, FinetuningConfig, Fixed, log_prob
from mbrl.errors import ConfigError
from tests.behaviour.test_resume import assert_same

METHODS: dict[str, dict[str, Any]] = {
    "chains": {},
    "chains with a divergence": {"kl": 0.01},
    "branches": {"method": "branches", "splits": (0, 1, 2)},
    "pruned": {"method": "branches", "splits": (0, 1), "left_out": (3,), "width": "best"},
    "singular": {"method": "singular", "trained": 3},
    "explore": {"method": "explore", "candidates": 16},
    "preferences": {"method": "preferences", "beta": 5.0},
    "weighted": {"method": "weighted"},
}
PRUNED = {"method": "branches", "splits": (0,), "prompts": 1, "width_ratio": 0.1}
SHORT = ("chains", "branches", "explore")  # not marked as long where all would learn
SMALL = {"steps": 5, "sigma_max": 10.0, "sigma_min": 0.05, "learning_rate": 3e-3, "clip": 0.05}


class Network(nn.Module):
    """F of EDM's preconditioning: two numbers and a level in, two out."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2))
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(0.1 * torch.randn(p.shape, generator=draw))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        out: Tensor = self.layers(torch.cat([x, c[:, None]], 1))
        return out


def total(x: Tensor) -> Tensor:
    return x.sum(1)


def tuning(seed: int = 0, given: Any = None, **values: Any) -> DiffusionFinetuning:
    config = FinetuningConfig(**SMALL | values)
    return DiffusionFinetuning(Network(), (2,), total, given, config, seed=seed)


def mean_reward(own: DiffusionFinetuning) -> float:
    return float(total(own.samples(2_000, torch.Generator().manual_seed(9))).mean())


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(values, id=name, marks=[] if name in SHORT else pytest.mark.long)
        for name, values in METHODS.items()
    ],
)
def test_rewards_rise(settings: dict[str, Any]) -> None:
    own = tuning(**settings)
    before = mean_reward(own)
    for _ in range(40):
        metrics = own.update()
    assert mean_reward(own) > before + 0.15
    assert torch.isfinite(metrics["policy/loss"]) and own.rounds == 40


@pytest.mark.parametrize("settings", METHODS.values(), ids=METHODS)
def test_a_run_that_was_stopped_goes_on_alike(settings: dict[str, Any]) -> None:
    whole, stopped = tuning(**settings), tuning(**settings)
    for _ in range(2):
        whole.update(), stopped.update()
    state = copy.deepcopy(stopped.state_dict())
    later = tuning(seed=5, **settings)
    later.load_state_dict(state)
    for _ in range(2):
        whole.update(), later.update()
    assert_same(whole.state_dict(), later.state_dict())


def test_the_first_update_is_reinforce() -> None:
    """At a ratio of 1 the gradient is that of minus the mean of advantage times log-density."""
    own = tuning()
    with torch.no_grad():
        moves, _ = own.by_chains()
    value, metrics = own.loss(moves)
    assert metrics["policy/ratio_max"] == pytest.approx(1.0, abs=1e-4)
    mine = torch.autograd.grad(value, list(own.network.parameters()))
    score = log_prob(own.denoiser(own.network), moves, own.config.eta)
    right = torch.autograd.grad(-(moves.advantage * score).mean(), list(own.network.parameters()))
    for a, b in zip(mine, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_scores_of_all_granularities_are_added() -> None:
    once, twice = (
        tuning(method="singular", trained=3, granularities=g).by_singular()[0].advantage
        for g in ((1,), (1, 1))
    )
    torch.testing.assert_close(twice, 2.0 * once)


def test_a_divergence_holds_the_network_back() -> None:
    free, held = tuning(), tuning(kl=10.0)
    for _ in range(15):
        free.update(), held.update()
    assert abs(mean_reward(held) - mean_reward(tuning())) < 0.5 * abs(
        mean_reward(free) - mean_reward(tuning())
    )


def test_exploration_at_full_precision_changes_nothing_but_the_choice() -> None:
    """With weights of so many bits that rounding does nothing, what is chosen comes out as it
    was."""
    own = tuning(method="explore", candidates=16, bits=30, group=4, prompts=2)
    seen: list[Tensor] = []
    own.reward = lambda x: seen.append(x.clone()) or total(x)  # type: ignore[func-returns-value]
    own.by_explore()
    rough, full = seen
    for x in full:
        assert float((rough - x).abs().sum(1).min()) < 1e-4


def test_prompts_are_the_same_in_a_group_and_stay() -> None:
    def prompts(count: int, generator: torch.Generator) -> Fixed:
        values = torch.randn(count, 2, generator=generator)
        return Fixed(torch.tensor([True, False]), values)

    own, seen = tuning(given=prompts, group=4, splits=(0, 1, 2)), []
    own.reward = lambda x: seen.append(x.clone()) or total(x)  # type: ignore[func-returns-value]
    own.update()
    first = seen[0][:, 0].view(own.config.prompts, 4)
    assert torch.equal(first, first[:, :1].expand(-1, 4)) and len(first[:, 0].unique()) > 1
    _, reward = own.by_branches()
    assert len(reward) == own.config.prompts * 8


@pytest.mark.parametrize(
    ("mask", "rows", "message"),
    [
        (torch.tensor([1, 0], dtype=torch.uint8), 8, r"give torch\.bool"),
        (torch.tensor([True, False]), 1, r"and \(8, 2\)"),
        (torch.tensor([True, True]), 8, "leave some"),
    ],
)
def test_given_entries_that_cannot_be_are_refused(
    mask: torch.Tensor, rows: int, message: str
) -> None:
    fixed = Fixed(mask, torch.zeros(rows, 2))
    own = tuning(given=lambda count, generator: fixed, prompts=8)
    with pytest.raises(ConfigError, match=message):
        own.update()
    with pytest.raises(ConfigError, match=message):
        own.samples(8, torch.Generator(), fixed)


@pytest.mark.parametrize("method", ["preferences", "weighted"])
def test_given_entries_of_stored_samples_are_neither_noised_nor_asked_for(method: str) -> None:
    def prompts(count: int, generator: torch.Generator) -> Fixed:
        return Fixed(torch.tensor([True, False]), torch.full((count, 2), 3.0))

    own, seen = tuning(given=prompts, method=method, group=4), []
    usual = own.network.forward
    own.network.forward = lambda x, c: seen.append((x, c)) or usual(x, c)  # type: ignore[func-returns-value]
    own.update()
    for x, c in seen:  # scaled by 1 / sqrt(sigma^2 + 1), of the level ln(sigma) / 4
        norm = ((4 * c).exp().square() + 1).sqrt()
        torch.testing.assert_close(x[:, 0] * norm, torch.full_like(c, 3.0))
    clean, noise, sigma = torch.zeros(4, 2), torch.zeros(4, 2), torch.ones(4)
    own.network.forward = lambda x, c: torch.tensor([[5.0, 0.0]]).expand_as(x)
    free = torch.tensor([0.0, 1.0])
    assert not own.errors(own.network, clean, noise, sigma, free).any()


def test_what_is_left_out_is_sampled_and_not_learned_from() -> None:
    """Trees of two splits and five steps, four of which draw: nodes 2, 4, 4 and 4 a prompt."""
    values = {"method": "branches", "splits": (0, 1), "prompts": 3, "group": 4}
    whole, seen = tuning(**values), []
    every = whole.by_branches()
    assert len(every[0].x) == 3 * 14
    for extra, count in (
        ({"left_out": (4,)}, 3 * 10),
        ({"width": "best"}, 3 * (6 + 4)),
        ({"width": "extremes", "width_ratio": 0.25}, 3 * 6 + 6),
        ({"width": "best", "left_out": (1, 3)}, 3 * 4),
    ):
        own = tuning(**values, **extra)
        moves, reward = own.by_branches()
        seen.append(reward)
        assert len(moves.x) == count and own.evaluations == 3 * (2 + 4 * 4)
    assert all(torch.equal(reward, every[1]) for reward in seen)


def test_evaluations_are_counted() -> None:
    """64 samples of five steps, and their four random steps once more in the updates."""
    own = tuning(prompts=8, group=8)
    own.update()
    assert own.evaluations == 64 * 5 + 64 * 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"eta": 0.0}, "eta is 0 and method chains"),
        ({"method": "branches", "splits": (0, 4)}, "each is below 4"),
        ({"method": "branches", "splits": (1,), "left_out": (2, 3, 4)}, "leave one"),
        ({"method": "branches", "splits": (0,), "left_out": (2, 3, 4, 5)}, "depths are 1 to 4"),
        ({"method": "branches", "width": "half"}, "width"),
        ({**PRUNED, "width": "best", "left_out": (1, 2)}, "leaves nothing of what width 'best'"),
        ({**PRUNED, "width": "best", "left_out": (3, 4), "left_out_every": 5}, "in some round"),
        ({**PRUNED, "width": "extremes", "left_out": (1, 2, 4)}, "a larger width_ratio"),
        ({"method": "singular", "trained": 5}, "at most 4"),
        ({"group": 1}, "2 samples or more"),
        ({"method": "explore", "candidates": 4}, "as many candidates"),
        ({"method": "explore", "bits": 1}, "bits is 1"),
        ({"method": "grow"}, "method"),
        ({"method": "branches", "splits": ()}, "give one or more"),
        ({"method": "branches", "splits": (0, 0, 1)}, "each step once"),
        ({"method": "singular", "granularities": ()}, "granularities are empty"),
        ({"method": "preferences", "kl": 0.1}, "set kl to 0"),
        ({"clip": 0.0}, "clip"),
        ({"clip": 0.2}, "clip"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FinetuningConfig(**SMALL | values)


def test_a_state_of_other_settings_is_refused() -> None:
    state = tuning().state_dict()
    with pytest.raises(ConfigError, match="other settings: eta"):
        tuning(eta=0.1).load_state_dict(state)


@pytest.mark.parametrize("settings", METHODS.values(), ids=METHODS)
def test_rewards_that_are_no_numbers_are_refused(settings: dict[str, Any]) -> None:
    for reward, text in (
        (lambda x: total(x).log().sqrt(), "it must be finite"),
        (lambda x: total(x)[:, None], r"give one number for each, \[B\]"),
    ):
        own = DiffusionFinetuning(
            Network(), (2,), reward, None, FinetuningConfig(**SMALL | settings), seed=0
        )
        with pytest.raises(ConfigError, match=text):
            own.update()
