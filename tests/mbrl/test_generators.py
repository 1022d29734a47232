"""States of generators that another kind of device saved."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator, nn

import longreach as lr
from algorithms import ALGORITHMS
from algorithms.diffusion_rl import DiffusionFinetuning, FinetuningConfig
from experiments.settings import build_config
from mbrl.generators import set_state
from mbrl.policy_gradient.collectors import EpisodeCollector
from tests.algorithms.language.cases import learner
from tests.small import CONFIGS

OTHERS = torch.zeros(16, dtype=torch.uint8)  # the size of a CUDA generator's state


def draws(generator: Generator) -> list[float]:
    return torch.rand(3, generator=generator).tolist()


def test_a_state_of_another_device_seeds_anew() -> None:
    def at(step: int, seed: int = 1) -> list[float]:
        generator = Generator().manual_seed(seed)
        with pytest.warns(UserWarning, match="not bit for bit"):
            set_state(generator, OTHERS, step)
        return draws(generator)

    assert at(5) == at(5)
    assert len({tuple(d) for d in (at(5), at(6), at(5, 2), draws(Generator().manual_seed(1)))}) == 4
    one, other = Generator().manual_seed(3), Generator().manual_seed(4)
    draws(one)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_state(other, one.get_state(), 5)
    assert draws(one) == draws(other)


@pytest.mark.parametrize(("name", "key"), [("bc", "generator"), ("pgd", "generating")])
def test_agents_load_what_another_device_saved(name: str, key: str) -> None:
    spec, config = lr.make("Pendulum-v1").spec, build_config(name, CONFIGS[name])
    agent: Any = ALGORITHMS[name][0](spec, config, seed=0)
    state = agent.state_dict() | {key: OTHERS}
    with pytest.warns(UserWarning, match="not bit for bit"):
        agent.load_state_dict(state)
    assert draws(agent.generator)


def finetuning() -> DiffusionFinetuning:
    return DiffusionFinetuning(nn.Linear(2, 2), (2,), lambda x: x.sum(1), None, FinetuningConfig())


MAKERS: dict[str, Callable[[], Any]] = {
    "start states": lambda: EpisodeCollector(lr.make("CartPole-v1"), envs=2),
    "denoiser": finetuning,
    "language model": lambda: learner("brackets", "grpo"),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_others_load_what_another_device_saved(make: Callable[[], Any]) -> None:
    owner = make()
    state = owner.state_dict() | {"generator": OTHERS}
    with pytest.warns(UserWarning, match="not bit for bit"):
        owner.load_state_dict(state)
    assert draws(owner.generator)
