"""The detector: what it measures against slow loops and closed forms, and when it raises alarm."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms import ALGORITHMS, MBPO, RAVL, MBPOConfig, RAVLConfig
from algorithms.evaluation import diagnosis
from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic, value_memory
from experiments.settings import build_config, merge
from mbrl import config as configs
from mbrl import data
from mbrl.errors import ConfigError
from mbrl.tasks.synthetic import PointMass
from mbrl.types import Dataset, Spec
from tests.small import CONFIGS
from world_models import EnsembleDynamics, Interpolated, Prediction, TrueDynamics

ROW = {"reach/outside": 0.2, "reach/value_edge": 3.0, "reach/value_inside": 1.0}


def learner(spec: Spec, **changes: object) -> SoftActorCritic:
    config = LearnerConfig(**({"critics": 3, "hidden": (8, 8)} | changes))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    return SoftActorCritic(spec, config, torch.device("cpu"), generator)


class Steady:
    """A model whose state stands still, with reward 1 and an end where the state is negative. Above
    `known` it has no answer."""

    num_members = 1

    def __init__(self, spec: Spec, known: float | None = None) -> None:
        self.spec, self.known = spec, known

    def predict(self, obs, action, generator, *, member=None, state=None, measure=None):
        valid = None if self.known is None else obs[:, 0] <= self.known
        return Prediction(obs, torch.ones(len(obs)), obs[:, 0] < 0, valid=valid)


def test_soft_return_has_its_closed_form() -> None:
    spec = PointMass().spec
    agent = learner(spec, gamma=0.9, entropy_in_target=False)
    obs = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    rewards = (torch.tensor(0.0), torch.tensor(2.0))
    found = diagnosis.soft_return(
        agent, Steady(spec), obs, torch.zeros(2, 2), rewards, torch.tensor(0.0),
        torch.Generator().manual_seed(0),
    )  # fmt: skip
    np.testing.assert_allclose(found.numpy(), [1 / (1 - 0.9), 1.0], rtol=1e-6)
    cut = diagnosis.soft_return(
        agent,
        Steady(spec),
        obs,
        torch.zeros(2, 2),
        (torch.tensor(0.0), torch.tensor(0.5)),
        torch.tensor(0.0),
        torch.Generator().manual_seed(0),
    )
    np.testing.assert_allclose(cut.numpy(), [5.0, 0.5], rtol=1e-6)


def test_nothing_is_earned_where_the_model_has_no_answer() -> None:
    spec = PointMass().spec
    agent = learner(spec, gamma=0.9, entropy_in_target=False)
    obs = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    found = diagnosis.soft_return(
        agent, Steady(spec, known=2.0), obs, torch.zeros(2, 2),
        (torch.tensor(0.0), torch.tensor(2.0)), torch.tensor(0.0),
        torch.Generator().manual_seed(0),
    )  # fmt: skip
    np.testing.assert_allclose(found.numpy(), [1 / (1 - 0.9), 0.0], rtol=1e-6)


def test_soft_return_pays_a_bonus_after_the_first_step() -> None:
    spec = PointMass().spec
    agent = learner(spec, gamma=0.9)
    obs = torch.tensor([[1.0, 0.5], [-1.0, 0.5]])
    rewards = (torch.tensor(0.0), torch.tensor(2.0))
    found = diagnosis.soft_return(
        agent, Steady(spec), obs, torch.zeros(2, 2), rewards, torch.tensor(0.3),
        torch.Generator().manual_seed(0),
    )  # fmt: skip
    np.testing.assert_allclose(found.numpy(), [(1 + 0.9 * 0.3) / 0.1, 1.0], rtol=1e-6)


@torch.no_grad()
def test_imagined_rewards_are_cut_and_those_of_the_task_are_not() -> None:
    """A model that pays 1 for ever where the data paid half of that; the range of values is that of
    the rewards and of entropies at the larger of today's and the remembered temperature."""
    spec = PointMass().spec
    agent = learner(spec, gamma=0.9, alpha=0.01)
    obs, rewards = torch.ones(4, 2), (torch.tensor(-1.0), torch.tensor(0.5))
    for cut, paid in ((True, 0.5), (False, 1.0)):
        found = diagnosis.value_metrics(
            agent, Steady(spec), obs, rewards, torch.tensor([0.3, 0.0]),
            torch.Generator().manual_seed(0), clip_rewards=cut,
        )  # fmt: skip
        assert float(found["value/monte_carlo"]) == pytest.approx(paid / 0.1, rel=1e-5)
        span = (1.5 + 0.3 * (2 * math.log(2) + 2)) / 0.1
        assert float(found["value/range"]) == pytest.approx(span, rel=1e-5)


def test_the_bonus_that_values_remember() -> None:
    """The value of one endless state that pays for entropy alone, learned by averaged exact targets
    while temperature and entropy fall: it is the remembered bonus over 1 - gamma."""
    agent = learner(PointMass().spec, gamma=0.9, tau=0.05)
    value = 0.0
    for step in range(300):
        alpha, entropy = math.exp(-step / 50), 1.2 - step / 100
        metrics = {"actor/alpha": torch.tensor(alpha), "actor/entropy": torch.tensor(entropy)}
        agent.remembered = value_memory(agent, metrics)
        value += 0.05 * (alpha * entropy + 0.9 * value - value)
    assert float(agent.remembered[1]) / 0.1 == pytest.approx(value, rel=1e-4)
    assert float(agent.remembered[0]) > 10 * alpha


def test_one_step_of_the_policy_for_several_of_the_critics() -> None:
    """The values remember as much as after so many updates with the same temperature."""
    agents = [learner(PointMass().spec, gamma=0.9, tau=0.05) for _ in range(2)]
    metrics = {"actor/alpha": torch.tensor(0.5), "actor/entropy": torch.tensor(1.0)}
    for _ in range(4):
        agents[0].remembered = value_memory(agents[0], metrics)
    agents[1].remembered = value_memory(agents[1], metrics, 4)
    assert torch.allclose(agents[0].remembered, agents[1].remembered)


@torch.no_grad()
def test_edge_metrics_against_a_loop() -> None:
    agent = learner(PointMass().spec)
    generator = torch.Generator().manual_seed(3)
    trained = torch.rand(400, 2, generator=generator)
    ends = torch.cat([torch.rand(6, 2, generator=generator), 4 + torch.rand(4, 2)])
    found = diagnosis.edge_metrics(agent, trained, ends)
    assert float(found["reach/outside"]) == pytest.approx(0.4)
    spreads, penalties = [], []
    for state in ends[6:]:
        action = torch.tanh(agent.actor.distribution(state[None])[0])
        q = [float(agent.critic.member(torch.cat([state[None], action], 1), n)) for n in range(3)]
        spreads.append(np.std(q))
        penalties.append(np.mean(q) - np.min(q))
    assert float(found["reach/spread_edge"]) == pytest.approx(np.mean(spreads), rel=1e-4)
    assert float(found["reach/penalty_edge"]) == pytest.approx(np.mean(penalties), rel=1e-4)


def rows(excess: list[float], q: list[float]) -> list[dict[str, float]]:
    return [
        ROW | {"value/at": 100.0 * i, "value/excess": e, "value/q": v, "value/monte_carlo": 0.0}
        for i, (e, v) in enumerate(zip(excess, q, strict=True))
    ]


def test_alarm_needs_two_in_a_row_and_rising_values() -> None:
    assert diagnosis.verdict(rows([0.0, 0.5, 0.0, 0.5], [0, 1, 2, 3])).since is None
    assert diagnosis.verdict(rows([0.0, 0.5, 0.5, 0.0], [0, 2, 1, 0])).since is None
    found = diagnosis.verdict(rows([0.0, 0.5, 0.5, 0.0], [0, 1, 2, 3]))
    assert found.danger and found.since == 200
    assert "20.0 % of rollouts end where no trained transition starts" in found.sentence
    assert "values are higher there than inside" in found.sentence


@pytest.mark.parametrize(
    ("excess", "q", "since"),
    [
        ([0.5, 0.5, 0.0, 0.0], [0, 1, 2, 3], None),  # healed
        ([0.5, 0.5, 0.5, 0.5], [0, 2, 1, 0], None),  # too high, but falling
        ([0.5, 0.5, 0.0, 0.5], [0, 1, 2, 3], 100),  # one calm diagnosis is not enough
        ([0.5, 0.5, 0.5, 0.0], [0, 2, 1, 2], None),  # two reasons to be calm count alike
        ([0.5, 0.5, 0.0, 0.0, 0.5, 0.5], [0, 1, 2, 3, 4, 5], 500),  # in danger again
    ],
)
def test_the_alarm_is_withdrawn_after_two_calm_diagnoses(
    excess: list[float], q: list[float], since: int | None
) -> None:
    found = diagnosis.verdict(rows(excess, q))
    assert found.since == since and found.danger == (since is not None)


def test_a_diagnosis_that_is_logged_again_counts_once() -> None:
    first, second = rows([0.5, 0.5], [1, 1])
    assert diagnosis.verdict([first, first, first | {"value/q": 2.0}]).since is None
    assert diagnosis.verdict([first, second | {"value/q": 2.0}]).since == 100
    assert not diagnosis.verdict([{"step": 1.0}]).danger


@pytest.mark.parametrize("every", [0, 10, 1000])
def test_a_diagnosed_run_is_the_run_that_it_would_be_without(every: int) -> None:
    dataset = data.load("pendulum/medium-replay")
    weights = []
    for diagnose in (0, every):
        values = {
            **CONFIGS["ravl"],
            "imagination": {**CONFIGS["ravl"]["imagination"], "diagnose": diagnose},
        }
        agent = RAVL(dataset.spec, configs.from_dict(RAVLConfig, values), seed=1)
        agent.fit(dataset, 12, callbacks=[])
        weights.append(torch.cat([p.flatten() for p in agent.policy.parameters()]))
    assert torch.equal(*weights)


def test_what_values_remember_is_in_the_checkpoint(tmp_path: Path) -> None:
    dataset = data.load("pendulum/medium-replay")
    agent = RAVL(dataset.spec, configs.from_dict(RAVLConfig, CONFIGS["ravl"]), seed=1)
    agent.fit(dataset, 3, callbacks=[]).save(tmp_path / "agent.pt")
    assert (agent.learner.remembered > 0).all()
    assert torch.equal(
        RAVL.load(tmp_path / "agent.pt").learner.remembered, agent.learner.remembered
    )


def test_true_and_mixed_dynamics_as_a_setting() -> None:
    dataset = data.load("pendulum/medium-replay")
    for truth, kind in ((0.0, EnsembleDynamics), (0.5, Interpolated), (1.0, TrueDynamics)):
        values = CONFIGS["mbpo"] | {
            "imagination": CONFIGS["mbpo"]["imagination"] | {"truth": truth, "diagnose": 5}
        }
        agent = MBPO(dataset.spec, configs.from_dict(MBPOConfig, values))
        assert isinstance(agent.model, kind)
        agent.fit(dataset, 3, callbacks=[])
        assert (agent.learned is None) == (truth == 1.0)
    imagined = agent.source.imagined
    row = imagined.batch(imagined.rows[:50])
    task = TrueDynamics(agent.model.task)
    step = task.predict(row.obs, 2 * row.action, torch.Generator())
    torch.testing.assert_close(step.next_obs, row.next_obs)
    with pytest.raises(ConfigError, match="truth is 2"):
        configs.from_dict(MBPOConfig, {"imagination": {"truth": 2.0}})


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("mbpo", "critics"),
        ("mobile", "all"),
        *(
            pytest.param(*p, marks=pytest.mark.long)
            for p in (("mbpo", "all"), ("mobile", "critics"))
        ),
    ],
)
def test_critics_with_layer_norm_are_diagnosed(name: str, norm: str, pendulum: Dataset) -> None:
    values = merge(
        CONFIGS[name], {"learner": {"layer_norm": norm}, "imagination": {"diagnose": 10}}
    )
    agent = ALGORITHMS[name][0](pendulum.spec, build_config(name, values), seed=0)
    seen: dict[str, float] = {}
    agent.fit(pendulum, 12, callbacks=[lambda _event, _agent, metrics: seen.update(metrics)])
    obs = pendulum.transitions.obs[:5]
    unit = agent.policy.scale.to_unit(agent.policy(obs))
    expected = agent.learner.critic(torch.cat([obs, unit], -1))[..., 0]
    torch.testing.assert_close(diagnosis.greedy_values(agent.learner, obs), expected)
    assert math.isfinite(float(seen["value/q"])) and math.isfinite(float(seen["value/excess"]))
