"""COPlanner: which of the policy's actions is taken, in rollouts and in the task."""

import numpy as np
import pytest
import torch
from torch import Tensor

from algorithms import COPlanner, COPlannerConfig
from algorithms.coplanner import ForesightConfig, futures
from experiments.settings import build_config
from mbrl.errors import ConfigError
from mbrl.types import Dataset, Spec
from tests.algorithms.test_algorithms import build
from world_models import Prediction


class Fork:
    """Action a pays a and leads a further along; disagreement is the square of the action; ends
    beyond `end`. The member and the draws change nothing."""

    spec = Spec("fork", 1, 1, None, (-1.0,), (1.0,), 10)
    device, num_members = torch.device("cpu"), 2

    def __init__(self, end: float = 1e9) -> None:
        self.end = end

    def predict(self, obs, action, generator, *, member=None, state=None, measure=None):
        assert member is not None and set(member.tolist()) <= {0, 1}
        following = obs + action
        ended = following[:, 0] > self.end
        return Prediction(following, action[:, 0], ended, action[:, 0].square())

    def disagreement(self, obs, action, name):
        return action[:, 0].square()


def halve(obs: Tensor, generator: torch.Generator) -> Tensor:
    return 0.5 * obs


@pytest.mark.parametrize("end", [1e9, 2.0])
def test_futures_against_a_loop(end: float) -> None:
    config = ForesightConfig(horizon=4, discount=0.9)
    obs, action = torch.tensor([[1.0], [0.2], [-1.0]]), torch.tensor([[0.5], [-0.3], [1.0]])
    generator = torch.Generator().manual_seed(0)
    reward, uncertainty = futures(Fork(end), halve, obs, action, config, generator)
    for b in range(3):
        s, a, total, doubt = float(obs[b]), float(action[b]), 0.0, 0.0
        for t in range(4):
            total, doubt = total + 0.9**t * a, doubt + 0.9**t * a * a
            s += a
            if s > end:
                break
            a = 0.5 * s
        assert float(reward[b]) == pytest.approx(total, abs=1e-5)
        assert float(uncertainty[b]) == pytest.approx(doubt, abs=1e-5)


def test_rollouts_avoid_and_exploration_seeks_what_is_unknown() -> None:
    """The same candidates, by hand: the choice maximises reward minus or plus the weighted
    uncertainty; rollouts take the first, experience the second, evaluation the policy's own."""
    config: COPlannerConfig = build_config(
        "coplanner",
        {
            "learner": {"hidden": [8]},
            "imagination": {"starts": 4, "termination": "never"},
            "foresight": {"candidates": 6, "horizon": 1, "conservative": 3.0, "optimistic": 5.0},
        },
    )
    agent = COPlanner(Fork.spec, config, model=Fork(), seed=0)
    obs = torch.linspace(-1, 1, 7)[:, None]

    def draws() -> tuple[torch.Generator, Tensor]:
        generator = torch.Generator().manual_seed(4)
        many = obs.repeat_interleave(6, 0)
        candidates = agent.learner.actor.explore(many, generator).detach().view(7, 6)
        return torch.Generator().manual_seed(4), candidates

    generator, candidates = draws()
    careful = agent.imagined_action(obs, generator)[:, 0]
    generator, _ = draws()
    curious, _ = agent.act(obs, deterministic=False, generator=generator)
    (changed,) = agent.changed
    for b in range(7):
        scores = {sign: candidates[b] + sign * candidates[b].square() for sign in (-3.0, 5.0)}
        assert float(careful[b]) == pytest.approx(float(candidates[b, scores[-3.0].argmax()]))
        assert bool(changed[b]) == (scores[-3.0].argmax() != candidates[b].argmax())
        assert float(curious[b, 0]) == pytest.approx(float(candidates[b, scores[5.0].argmax()]))
    assert (curious[:, 0].abs() > careful.abs()).float().mean() > 0.5
    greedy, state = agent.act(obs.numpy())
    assert np.allclose(greedy, agent.policy(obs).detach().numpy()) and state is None


def test_coplanner_rollouts_go_through_its_choice(pendulum: Dataset) -> None:
    agent = build("coplanner", pendulum.spec)
    weights: list[float] = []
    choose = agent.choose

    def watching(obs: Tensor, weight: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        weights.append(weight)
        return choose(obs, weight, generator)

    agent.choose = watching
    agent.fit(pendulum, 2, callbacks=[])
    assert weights == [-2.0] * 3  # one call for each imagined step
    one, _ = agent.act(np.zeros(3), deterministic=False, generator=torch.Generator())
    assert one.shape == (1,) and weights[-1] == 1.0
    with pytest.raises(ConfigError, match="unknown disagreement measure"):
        ForesightConfig(measure="nothing")
