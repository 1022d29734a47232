"""Off-policy evaluation between the policies that recorded NeoRL-2: episodes of one of them with
Gaussian noise of known deviation, the value of another."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.recording.actor_arrays import actor_of
from experiments.studies import Outcome
from experiments.studies.evaluation_coverage import draw, quality, require_settings
from mbrl import config as configs
from mbrl import tasks
from mbrl.config import Positive, Several
from mbrl.data import data_home
from mbrl.errors import ConfigError
from mbrl.policy_gradient.off_policy_evaluation import Logged, evaluate
from mbrl.tasks import Task

__all__ = ["DEFAULTS", "VERSION", "draw", "measure"]

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "task": "Pipeline",  # one whose "high" policies are published: Pipeline, Simglucose, ...
    "behaviour": 0,  # number of the policy that acts, by the published return
    "target": 1,  # and of the one that is valued
    "distance": 0.3,  # of the target's mean action from the first's to the second's
    "noise": 0.3,  # deviation of both policies' actions, in a range of [-1, 1]
    "estimator": "weighted_doubly_robust",
    "episodes": 200,  # of a data set
    "steps": 20,  # of an episode
    "sets": 100,  # data sets
    "truth": 20_000,  # episodes of the target policy that give its value
    "confidence": 0.95,
}
GAMMA = 0.97
FEATURES, RIDGE = 300, 1e-3  # random Fourier features of the values, and their ridge
FITTED = 1000  # episodes of the behaviour policy that the values are fitted to

Mean = Callable[[Tensor], Tensor]


class Episodes(NamedTuple):
    """Steps [T, B] of one policy; actions as they were drawn, before the task's bounds."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    mask: Tensor


def policies(task: str) -> list[Path]:
    """The published policies of the level "high", by return. Raises `ConfigError` without any."""
    folder = data_home() / "neorl2" / "behaviour-policies"
    files = sorted(folder.glob(f"{task}-high-*.npz"))
    if len(files) < 2:
        raise ConfigError(
            f"{folder} holds {len(files)} policies {task}-high-*.npz, the study needs two; they "
            "are published in polixir/neorl2_dataset (set LONGREACH_DATA to where they are)"
        )
    return files


def mean_of(file: Path) -> Mean:
    """The mean action [B, A] of a published policy, within the bounds."""
    actor = actor_of(file)

    def mean(obs: Tensor) -> Tensor:
        return actor.head(obs)[0].clamp(-1.0, 1.0)

    return mean


def simulate(
    task: Task, mean: Mean, noise: float, count: int, steps: int, generator: torch.Generator
) -> Episodes:
    """`count` episodes of at most `steps` steps of the policy N(mean(s), noise^2)."""
    state = task.reset(count, generator)
    alive = torch.ones(count, dtype=torch.bool)
    columns = []
    for _ in range(steps):
        obs = task.observe(state).float()
        action = mean(obs)
        action = action + noise * torch.randn(action.shape, generator=generator)
        step = task.step(state, action.clamp(-1, 1).to(state.dtype))
        columns.append((obs, action, step.reward.double(), alive))
        state, alive = step.state, alive & ~step.terminated
    return Episodes(*(torch.stack(c) for c in zip(*columns, strict=True)))


class Values:
    """Values of a policy by backward regression on random Fourier features, a step at a time, from
    episodes of another: q_t(s, a) of what is earned from step t to the horizon."""

    def __init__(
        self, episodes: Episodes, target: Mean, noise: float, generator: torch.Generator
    ) -> None:
        self.target = target
        x = torch.cat([episodes.obs, episodes.action], -1).flatten(0, 1)
        self.centre, self.scale = x.mean(0), x.std(0).clamp_min(1e-6)
        width = x.shape[1] ** 0.5
        self.frequencies = torch.randn(x.shape[1], FEATURES, generator=generator) / width
        # The mean of cos(w a) over a ~ N(m, s^2) is exp(-(w s)^2 / 2) cos(w m): v(s) is E q(s, a)
        # to the digit, without which doubly robust estimates are biased.
        size = episodes.action.shape[2]
        each = self.frequencies[-size:] * noise / self.scale[-size:, None]
        self.damping = (-0.5 * each.square().sum(0)).exp()
        self.phases = 2 * torch.pi * torch.rand(FEATURES, generator=generator)
        self.weights: list[Tensor] = []
        after = torch.zeros(episodes.obs.shape[1], dtype=torch.float64)
        for t in reversed(range(len(episodes.obs))):
            phi, alive = self.features(episodes.obs[t], episodes.action[t]), episodes.mask[t]
            goal = torch.where(alive, episodes.reward[t] + GAMMA * after, 0.0)
            rows = phi[alive]
            gram = rows.T @ rows + RIDGE * len(rows) * torch.eye(FEATURES + 1).double()
            self.weights.insert(0, torch.linalg.solve(gram, rows.T @ goal[alive]))
            after = torch.where(alive, self.v(episodes.obs[t], self.weights[0]), 0.0)

    def features(self, obs: Tensor, action: Tensor) -> Tensor:
        x = (torch.cat([obs, action], -1) - self.centre) / self.scale
        waves = torch.cos(x @ self.frequencies + self.phases)
        return torch.cat([waves, torch.ones_like(waves[:, :1])], 1).double()

    def v(self, obs: Tensor, weights: Tensor) -> Tensor:
        """The mean [B] of q over the target policy's actions at `obs` [B, S]."""
        phi = self.features(obs, self.target(obs))
        phi[:, :-1] *= self.damping
        return phi @ weights

    def of(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """q and v [B, T] along episodes."""
        q, v = [], []
        for obs, action, weights in zip(episodes.obs, episodes.action, self.weights, strict=True):
            q.append(self.features(obs, action) @ weights)
            v.append(self.v(obs, weights))
        return torch.stack(q, 1), torch.stack(v, 1)


def log_ratio(episodes: Episodes, behaviour: Mean, target: Mean, noise: float) -> Tensor:
    """log N(a; target(s), noise^2) - log N(a; behaviour(s), noise^2) [B, T]."""
    obs, action = episodes.obs.flatten(0, 1), episodes.action.flatten(0, 1)
    near, far = (
        ((action - mean(obs)) / noise).square().sum(-1).double() for mean in (target, behaviour)
    )
    return (0.5 * (far - near)).view(episodes.mask.shape).T


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """As `evaluation_coverage` reports, of data sets of the behaviour policy's episodes. The true
    value is the mean over `truth` episodes of the target policy; errors and widths are over the
    deviation of their returns, and so is `doubt`, the standard error of the true value."""
    require_settings(settings)
    configs.check(settings, {"noise": Positive, "truth": Several})
    files, noise = policies(settings["task"]), settings["noise"]
    for name in ("behaviour", "target"):
        if not 0 <= settings[name] < len(files):
            raise ConfigError(
                f"{name} is {settings[name]}; {settings['task']} has policies 0 to {len(files) - 1}"
            )
    first, second = (mean_of(files[settings[name]]) for name in ("behaviour", "target"))

    def target(obs: Tensor) -> Tensor:
        mixed: Tensor = first(obs) + settings["distance"] * (second(obs) - first(obs))
        return mixed

    task, steps = tasks.make(f"{settings['task']}-v0"), settings["steps"]
    g = torch.Generator().manual_seed(seed)
    discounts = GAMMA ** torch.arange(steps, dtype=torch.float64)
    true = simulate(task, target, noise, settings["truth"], steps, g)
    returns = (discounts[:, None] * torch.where(true.mask, true.reward, 0.0)).sum(0)
    value = float(returns.mean())
    doubly = "doubly" in settings["estimator"]
    values = None
    if doubly:
        values = Values(simulate(task, first, noise, FITTED, steps, g), target, noise, g)
    evaluations = []
    for i in range(settings["sets"]):
        seen = simulate(task, first, noise, settings["episodes"], steps, g)
        q, v = (None, None) if values is None else values.of(seen)
        ratio = log_ratio(seen, first, target, noise)
        data = Logged(ratio, seen.reward.T, seen.mask.T, GAMMA, q, v)
        share = settings["confidence"]
        evaluations.append(evaluate(data, settings["estimator"], confidence=share, seed=i))
    result = quality(evaluations, value, settings["confidence"], float(returns.std()))
    return Outcome(result | {"doubt": len(returns) ** -0.5}, {})
