"""The suite that every algorithm passes, and learning tests with a known answer."""

from typing import Any

import numpy as np
import pytest
import torch

import algorithms
from algorithms import ALGORITHMS, BC, RAVL, SAC, RAVLConfig, SACConfig
from algorithms.learners.soft_actor_critic import LearnerConfig
from experiments.settings import build_config
from mbrl.collector import Collector
from mbrl.errors import CheckpointError, ConfigError, DivergenceError
from mbrl.evaluation import evaluate
from mbrl.tasks import make
from mbrl.tasks.base import Step
from mbrl.training import train
from mbrl.types import Dataset, Spec, Transitions
from tests.small import CONFIGS, MODEL, OFFLINE, others_long, suited, takes


def build(name: str, spec: Spec, seed: int = 0) -> Any:
    values = dict(CONFIGS[name])
    if "imagination" in values:
        values["imagination"] = values["imagination"] | {"termination": "never"}
    if "rollouts" in values:
        values["rollouts"] = values["rollouts"] | {"termination": "never"}
    return ALGORITHMS[name][0](suited(name, spec, spec), build_config(name, values), seed=seed)


@pytest.mark.parametrize("name", OFFLINE)
def test_update_save_load_continue(
    name: str, pendulum: Dataset, cartpole: Dataset, tmp_path
) -> None:
    """Updates are finite; a loaded copy acts the same and continues bit for bit."""
    data = suited(name, pendulum, cartpole)
    agent = build(name, data.spec)
    logged: dict[str, float] = {}

    def log(event: str, agent: Any, metrics: dict[str, torch.Tensor]) -> None:
        logged.update({k: float(v) for k, v in metrics.items()})

    agent.fit(data, 12, callbacks=[log])
    assert agent.step == 12
    assert logged and all(np.isfinite(v) for v in logged.values())
    agent.save(tmp_path / "agent.pt")
    again = algorithms.load(tmp_path / "agent.pt")
    obs = data.transitions.obs[:7]
    assert torch.equal(agent.act(obs)[0], again.act(obs)[0])
    for copy in (agent, again):
        copy.fit(data, 11, callbacks=[])
    for a, b in zip(agent.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(a, b)


# A planner has nothing to act with before its model is fitted (tests/algorithms/test_pets.py).
@pytest.mark.parametrize("name", [n for n in OFFLINE if takes(n, "continuous") and n != "pets"])
def test_act_shapes_kinds_and_bounds(name: str) -> None:
    """Arrays give arrays, tensors tensors, one gives one; actions are in the task's units."""
    spec = Spec("wide", 3, 2, None, (-2.0, 0.0), (4.0, 0.5), 10)
    agent = build(name, spec)
    one, state = agent.act(np.zeros(3))
    assert isinstance(one, np.ndarray) and one.shape == (2,)
    assert (state is None) == (name not in ("neubay", "hecrl"))
    batch, _ = agent.act(torch.randn(50, 3) * 100)
    assert isinstance(batch, torch.Tensor) and batch.shape == (50, 2)
    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    noisy, _ = agent.act(
        torch.randn(50, 3), deterministic=False, generator=torch.Generator().manual_seed(0)
    )
    for action in (batch, noisy):
        assert (action >= low - 1e-5).all() and (action <= high + 1e-5).all()
    action, _ = agent.predict(np.zeros((4, 3)), deterministic=True)
    assert action.shape == (4, 2)
    with pytest.raises(ConfigError, match=r"obs has shape \(4,\)"):
        agent.act(np.zeros(4))


def test_all_are_made_for_a_task_whose_rule_of_ends_cannot_be_copied() -> None:
    pytest.importorskip("mujoco")
    spec = make("Hopper-v4").spec
    for name in OFFLINE:
        kind = ALGORITHMS[name][0]
        if takes(name, "continuous") and not kind.needs_goals:
            kind(spec, build_config(name, CONFIGS[name]))


@pytest.mark.parametrize("name", others_long(OFFLINE))
def test_a_dozen_rows_are_enough(name: str, pendulum: Dataset, cartpole: Dataset) -> None:
    """No empty holdout, split or batch, whatever the sizes of the settings."""
    whole = suited(name, pendulum, cartpole)
    data = whole.with_transitions(whole.transitions.select(slice(0, 12)))
    seen: list[torch.Tensor] = []
    agent = build(name, data.spec)
    agent.fit(data, 3, callbacks=[lambda event, agent, metrics: seen.extend(metrics.values())])
    assert agent.device.type == "cpu" and seen and all(torch.isfinite(m).all() for m in seen)


@pytest.mark.parametrize(
    "name",
    [n if n == "td3_bc" else pytest.param(n, marks=pytest.mark.long) for n in OFFLINE],
)
def test_compiled_update_equals_eager(name: str, pendulum: Dataset, cartpole: Dataset) -> None:
    """Graph capture (backend "eager") takes the plain batched forms; the numbers agree."""
    data = suited(name, pendulum, cartpole)
    agents = [build(name, data.spec) for _ in range(2)]
    for agent in agents:
        agent.prepare(data, lambda metrics: None)
        agent.advance()
    torch._dynamo.reset()
    compiled = torch.compile(agents[1].update, backend="eager")
    for _ in range(2):
        batches = [agent.next_batch() for agent in agents]
        agents[0].update(batches[0])
        compiled(batches[1])
        for agent in agents:
            agent.step += 1
    first, second = (dict(agent.policy.named_parameters()) for agent in agents)
    for key, value in first.items():
        assert torch.allclose(value, second[key], atol=1e-5), key


@pytest.mark.parametrize("name", [n for n in OFFLINE if takes(n, "discrete")])
def test_discrete_actions(name: str, cartpole: Dataset) -> None:
    agent = build(name, cartpole.spec)
    agent.fit(cartpole, 5, callbacks=[])
    for deterministic in (True, False):
        action, _ = agent.act(cartpole.transitions.obs[:9], deterministic=deterministic)
        assert action.dtype == torch.int64 and set(action.tolist()) <= {0, 1}
    one, state = agent.act(np.zeros(4))
    assert isinstance(one, np.ndarray) and one.shape == () and state is None


def test_the_other_kind_of_actions_is_refused(pendulum: Dataset, cartpole: Dataset) -> None:
    """The error names the algorithms that would do."""
    for kind, spec in (("continuous", pendulum.spec), ("discrete", cartpole.spec)):
        able = {n: c.__name__ for n, (c, _) in ALGORITHMS.items() if takes(n, kind)}
        assert "bc" in able and len(able) >= 4
        for name in set(ALGORITHMS) - set(able):
            with pytest.raises(ConfigError, match="algorithms that take them: ") as error:
                build(name, spec)
            named = str(error.value).rsplit(": ", 1)[1].split(", ")
            assert set(able.values()) <= set(named)


def test_wrong_uses_are_named(pendulum: Dataset, cartpole: Dataset, tmp_path) -> None:
    agent = build("bc", pendulum.spec)
    with pytest.raises(ConfigError, match="agent and dataset differ"):
        agent.fit(cartpole, 1, callbacks=[])
    with pytest.raises(ConfigError, match="no data yet"):
        agent.next_batch()
    with pytest.raises(ConfigError, match="steps is -1"):
        agent.fit(pendulum, -1)
    agent.save(tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="holds 'BC', not 'RAVL'"):
        RAVL.load(tmp_path / "a.pt")
    (tmp_path / "bad.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        BC.load(tmp_path / "bad.pt")


def test_divergence_names_quantity_and_step(pendulum: Dataset, tmp_path) -> None:
    from mbrl.callbacks import Checkpointer, Recorder

    agent = build("edac", pendulum.spec)
    saver = Checkpointer(tmp_path / "checkpoint.pt", every=10)
    recorder = Recorder(tmp_path, every=10, tensorboard=False)

    def poison(event: str, agent: Any, metrics: Any) -> None:
        if event == "step" and agent.step == 25:
            with torch.no_grad():
                agent.learner.critic.weights[0].fill_(float("nan"))

    with pytest.raises(DivergenceError, match=r"(critic|actor)/\w+ is nan at update 30"):
        agent.fit(pendulum, 100, callbacks=[poison, recorder, saver])
    assert algorithms.load(tmp_path / "checkpoint.pt").step == 20


# Known answers.


def bandit(rows: int = 400) -> Dataset:
    """One state, one step: most logged actions are near -0.5 with reward 0, few near +0.5 with
    reward 1. Cloning stays left; every value learner should go right."""
    generator = torch.Generator().manual_seed(0)
    spec = Spec("bandit", 2, 1, None, (-1.0,), (1.0,), 1)
    right = torch.rand(rows, generator=generator) < 0.25
    action = torch.where(right, 0.5, -0.5) + 0.15 * torch.randn(rows, generator=generator)
    action = action.clamp(-1, 1)[:, None]
    obs = torch.zeros(rows, 2)
    flags = torch.ones(rows, dtype=torch.bool)
    return Dataset(Transitions(obs, action, right.float(), obs, flags, ~flags), spec)


LEARNING: dict[str, dict[str, Any]] = {
    "bc": {"hidden": [32], "learning_rate": 3e-3, "normalise_obs": False},
    "td3_bc": {"hidden": [32], "learning_rate": 3e-3, "alpha": 10.0, "normalise_obs": False},
    "iql": {"hidden": [32], "learning_rate": 3e-3, "temperature": 10.0},
}
LEARNING["rebrac"] = LEARNING["td3_bc"] | {"actor_bc": 0.1, "batch_size": 64}
del LEARNING["rebrac"]["alpha"]
LEARNING["odice"] = {"hidden": [32], "policy_hidden": [32], "learning_rate": 3e-3}
LEARNING["odice"]["weight"] = "residual"
LEARNING["f_dvl"] = {"hidden": [32], "learning_rate": 3e-3, "temperature": 10.0}
LEARNING["recoil"] = {"hidden": [32], "learning_rate": 3e-3, "expert_episodes": 80, "gamma": 0.9}
LEARNING["a2pr"] = {"hidden": [32], "critic_hidden": [32], "vae_hidden": [32]}
LEARNING["a2pr"] |= {"learning_rate": 3e-3, "normalise_obs": False}
LEARNING["cdsa"] = {"hidden": [32], "learning_rate": 3e-3, "td3_bc": LEARNING["td3_bc"]}
LEARNING["fql"] = {"hidden": [32], "learning_rate": 3e-3, "alpha": 1.0, "gamma": 0.9}
LEARNING["idql"] = {"hidden": [32], "learning_rate": 3e-3, "candidates": 16}
LEARNING["expo"] = {"hidden": [32], "learning_rate": 3e-3, "critics": 2, "gamma": 0.9}
LEARNING["awac"] = {"hidden": [32], "learning_rate": 3e-3, "temperature": 0.1}
LEARNING["crr"] = {"hidden": [32], "learning_rate": 3e-3, "filter": "binary", "baseline": "max"}
FAST = {"hidden": [32], "batch_size": 64, "actor_lr": 3e-3, "critic_lr": 3e-3, "alpha_lr": 3e-3}
LEARNING["cql"] = {"learner": FAST, "weight": 0.2}
LEARNING["sac_n"] = {"learner": FAST}
SHAPED = {"hidden": [32], "batch_size": 64, "learning_rate": 3e-3}
LEARNING |= {name: {"learner": SHAPED} for name in ("stac", "ggd_sac")}
LEARNING["edac"] = {"learner": FAST}
ONE_STEP = {
    "learner": FAST,
    "model": MODEL | {"max_epochs": 30, "min_epochs": 15, "hidden": [32]},
    "imagination": {
        "starts": 200,
        "every": 50,
        "rollout": {"horizon": 1},
        "termination": "never",
        "real_ratio": 0.5,
    },
}
LEARNING |= dict.fromkeys(("mbpo", "mopo", "ravl", "coplanner"), ONE_STEP)
LEARNING["morel"] = ONE_STEP | {"threshold_rule": "maximum", "threshold": 1.0}
LEARNING["mobile"] = ONE_STEP | {"samples": 3}
LEARNING["combo"] = ONE_STEP | {"weight": 0.2, "samples": 5}
LEARNING["rambo"] = ONE_STEP | {
    "cloning": {"epochs": 3},
    "adversary": {"every": 200, "steps": 20},
}
LEARNING["pets"] = {
    "model": ONE_STEP["model"],
    "planner": {"horizon": 1, "population": 50, "particles": 4},
    "termination": "never",
}


@pytest.mark.parametrize("name", others_long(LEARNING, ("expo", "mbpo", "morel", "cdsa")))
def test_offline_bandit(name: str) -> None:
    data = bandit()
    agent = ALGORITHMS[name][0](data.spec, build_config(name, LEARNING[name]), seed=0)
    agent.fit(data, 400, callbacks=[])
    action = float(agent.act(np.zeros(2))[0][0])
    if name == "bc":
        assert -0.6 < action < 0.0
    else:
        assert action > 0.2, name


@pytest.mark.parametrize("truncated_only", [True, False])
def test_truncation_bootstraps_and_termination_does_not(truncated_only: bool) -> None:
    """Reward 1 for ever is worth 1 / (1 - gamma); cut episodes must not lower it, ended ones
    must."""
    n, gamma = 200, 0.9
    spec = Spec("loop", 1, 1, None, (-1.0,), (1.0,), 10)
    generator = torch.Generator().manual_seed(0)
    action = 2 * torch.rand(n, 1, generator=generator) - 1
    last = torch.arange(n) % 10 == 9
    none = torch.zeros(n, dtype=torch.bool)
    terminated, truncated = (none, last) if truncated_only else (last | True, none)
    obs = torch.zeros(n, 1)
    data = Dataset(Transitions(obs, action, torch.ones(n), obs, terminated, truncated), spec)
    config = build_config(
        "iql", {"hidden": [16], "gamma": gamma, "learning_rate": 1e-2, "tau": 0.1}
    )
    agent = ALGORITHMS["iql"][0](spec, config, seed=0)
    agent.fit(data, 600, callbacks=[])
    value = float(agent.learner.value(torch.zeros(1, 1)).detach())
    assert value == pytest.approx(1 / (1 - gamma) if truncated_only else 1.0, rel=0.05)


class Identity:
    """reward = -(a - obs)^2 with a fresh obs each step: solved by copying the observation."""

    spec = Spec("identity", 1, 1, None, (-1.0,), (1.0,), 20)
    device = torch.device("cpu")

    def reset(self, count: int, generator: torch.Generator) -> torch.Tensor:
        return 2 * torch.rand(count, 1, generator=generator) - 1

    def observe(self, state: torch.Tensor) -> torch.Tensor:
        return state

    def step(self, state: torch.Tensor, action: torch.Tensor) -> Step:
        reward = -(action - state).square().sum(-1)
        following = torch.remainder(state * 3.7 + 1.3, 2) - 1
        return Step(following, following, reward, torch.zeros(len(state), dtype=torch.bool))


def test_sac_learns_the_identity_task_online() -> None:
    task: Any = Identity()
    learner = LearnerConfig(
        hidden=(32, 32), batch_size=64, actor_lr=3e-3, critic_lr=3e-3, alpha_lr=3e-3, gamma=0.5
    )
    agent = SAC(task.spec, SACConfig(learner=learner, capacity=5000, warmup=100), seed=0)
    before = evaluate(agent, task, 20).mean()
    agent.learn(task, 700, callbacks=[])
    after = evaluate(agent, task, 20).mean()
    assert before < -5 and after > -0.6  # 20 steps; a uniform guess costs about -13


def test_collector_marks_limits_and_resets() -> None:
    """Pendulum never terminates: every 200th row is truncated, and the next starts afresh."""
    task = make("Pendulum-v1")
    rows: list[Transitions] = []

    class Sink:
        step = 0

        def observe(self, data: Transitions) -> None:
            rows.append(data)

    collector = Collector(task, envs=3, warmup=10_000, seed=0)
    for _ in range(401):
        collector.collect(Sink())
    truncated = torch.stack([r.truncated for r in rows])
    assert torch.nonzero(truncated.all(1)).flatten().tolist() == [199, 399]
    assert not torch.equal(rows[199].next_obs, rows[200].obs)
    assert torch.equal(rows[100].next_obs, rows[101].obs)
    assert len(collector.returns) == 6


def test_evaluation_equals_one_episode_at_a_time(pendulum: Dataset) -> None:
    """The batched evaluation against a plain loop over single episodes in gymnasium."""
    import gymnasium

    agent = build("bc", pendulum.spec)
    task = make("Pendulum-v1", dtype=torch.float64)
    got = evaluate(agent, task, 3, seed=5)
    states = task.reset(3, torch.Generator().manual_seed(5))
    environment = gymnasium.make("Pendulum-v1").unwrapped
    for episode in range(3):
        environment.reset(seed=0)
        environment.state = states[episode].numpy().copy()
        obs, total = environment._get_obs(), 0.0
        for _ in range(200):
            obs, reward, *_ = environment.step(agent.act(obs)[0])
            total += float(reward)
        assert got[episode] == pytest.approx(total, rel=1e-4)


def test_true_model_can_replace_the_ensemble(pendulum: Dataset) -> None:
    from world_models import TrueDynamics

    model = TrueDynamics(make("Pendulum-v1"))
    config: RAVLConfig = build_config("ravl", CONFIGS["ravl"])
    agent = RAVL(pendulum.spec, config, model=model, seed=0)
    agent.fit(pendulum, 5, callbacks=[])
    imagined = agent.source.imagined
    rows = imagined.batch(imagined.rows[: imagined.size])
    step = model.task.step(model.task.state_from_obs(rows.obs)[0], rows.action * 2.0)
    assert torch.allclose(step.obs, rows.next_obs, atol=1e-4)
    train(agent, 8)
    assert agent.step == 8
