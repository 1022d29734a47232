"""The task itself behind the world-model protocol, and its mixture with a learned model.

`Interpolated` is the device of Sims et al., "The Edge-of-Reach Problem in Offline Model-Based
Reinforcement Learning", arXiv:2402.12527: a model error that shrinks to zero as the weight grows.
"""

import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.tasks.base import Task
from mbrl.types import Spec
from world_models.protocol import Prediction, WorldModel


def shown(task: Task, obs: Tensor) -> Tensor:
    """What `task` shows of the states that it reads in `obs` [B, S]: itself where it is an
    observation, and one near it where it is none. Models and means leave the circle of cosine and
    sine, say, where the task has no answer. Rows in which it reads nothing stay as they are."""
    seen = task.observe(task.state_from_obs(obs)[0]).to(obs)
    return torch.where(torch.isfinite(seen).all(-1, keepdim=True), seen, obs)


class TrueDynamics:
    """The task's own step as a world model.

    Where the simulator state is given it is stepped as it is, and the answer is exact. Where it is
    not, it is rebuilt from the observation (`Task.state_from_obs`, whose docstring gives the error
    of doing so); rows for which that is impossible come back with `valid` False, `next_obs` equal
    to `obs`, reward 0 and not terminated.
    """

    num_members = 1

    def __init__(self, task: Task) -> None:
        self.task = task

    @property
    def spec(self) -> Spec:
        return self.task.spec

    @property
    def device(self) -> torch.device:
        return self.task.device

    def predict(
        self,
        obs: Tensor,
        action: Tensor,
        generator: torch.Generator,
        *,
        member: Tensor | None = None,
        state: Tensor | None = None,
        measure: str | None = None,
    ) -> Prediction:
        """The true next observation, reward, end and state; `member` and `generator` are unused
        because the tasks are deterministic, and every disagreement `measure` is 0."""
        step = self._step(obs, action, state)
        if measure is None:
            return step
        return step._replace(disagreement=self.disagreement(obs, action, measure))

    def disagreement(self, obs: Tensor, action: Tensor, name: str) -> Tensor:
        """Zeros [B]: there is one true answer."""
        return torch.zeros(len(obs), dtype=obs.dtype, device=obs.device)

    def _step(self, obs: Tensor, action: Tensor, state: Tensor | None) -> Prediction:
        if state is not None:
            reached, next_obs, reward, terminated = self.task.step(state, action)
            return Prediction(next_obs, reward, terminated, state=reached)
        state, valid = self.task.state_from_obs(obs)
        if bool(valid.all()):
            reached, next_obs, reward, terminated = self.task.step(state, action)
            return Prediction(next_obs, reward, terminated, state=reached, valid=valid)
        return self._predict_possible(obs, action, state, valid)

    def _predict_possible(
        self, obs: Tensor, action: Tensor, state: Tensor, valid: Tensor
    ) -> Prediction:
        """Step the possible rows alone and put them back among the others."""
        next_obs, reached = obs.clone(), torch.zeros_like(state)
        reward = torch.zeros(len(obs), dtype=obs.dtype, device=obs.device)
        terminated = torch.zeros(len(obs), dtype=torch.bool, device=obs.device)
        rows = torch.nonzero(valid).flatten()
        if len(rows):
            step = self.task.step(state[rows], action[rows])
            next_obs[rows] = step.obs.to(next_obs.dtype)
            reward[rows] = step.reward.to(reward.dtype)
            terminated[rows] = step.terminated
            reached[rows] = step.state
        return Prediction(next_obs, reward, terminated, state=reached, valid=valid)


class Interpolated:
    """(1 - weight) times a model's next observation and reward plus weight times the truth's.

    Termination is the task's rule on the blended next observation. The simulator state goes with
    the truth alone: it is carried at weight 1, and rebuilt from the (blended) observation at every
    step otherwise. At weight 0 the truth is not asked. `disagreement` is the model's, scaled by
    (1 - weight); `member` goes to the model.
    """

    def __init__(self, model: WorldModel, truth: TrueDynamics, weight: float) -> None:
        if not 0.0 <= weight <= 1.0:
            raise ConfigError(f"the weight of the true dynamics must be in [0, 1], got {weight}")
        if model.spec.obs_dim != truth.spec.obs_dim or (
            model.spec.action_dim,
            model.spec.num_actions,
        ) != (truth.spec.action_dim, truth.spec.num_actions):
            raise ConfigError(
                f"the model is of {model.spec.task!r} (obs_dim {model.spec.obs_dim}, action_dim "
                f"{model.spec.action_dim}), the truth of {truth.spec.task!r} (obs_dim "
                f"{truth.spec.obs_dim}, action_dim {truth.spec.action_dim}); use the same task"
            )
        self.model, self.truth, self.weight = model, truth, weight

    @property
    def spec(self) -> Spec:
        return self.model.spec

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def num_members(self) -> int:
        return self.model.num_members

    def predict(
        self,
        obs: Tensor,
        action: Tensor,
        generator: torch.Generator,
        *,
        member: Tensor | None = None,
        state: Tensor | None = None,
        measure: str | None = None,
    ) -> Prediction:
        """The blend; `valid` is False where the model or the truth has no answer."""
        if self.weight == 1.0:
            return self.truth.predict(obs, action, generator, state=state, measure=measure)
        model = self.model.predict(obs, action, generator, member=member, measure=measure)
        next_obs, reward, valid = model.next_obs, model.reward, model.valid
        if self.weight > 0.0:
            truth = self.truth.predict(obs, action, generator)
            mean = torch.lerp(next_obs, truth.next_obs.to(next_obs), self.weight)
            next_obs = shown(self.truth.task, mean)
            reward = torch.lerp(reward, truth.reward.to(reward), self.weight)
            valid = truth.valid if valid is None else valid & _all_if_none(truth.valid, valid)
        terminated = self.truth.task.terminates(obs, action, next_obs)
        if model.disagreement is None:
            return Prediction(next_obs, reward, terminated, valid=valid)
        disagreement = (1.0 - self.weight) * model.disagreement
        return Prediction(next_obs, reward, terminated, disagreement, valid=valid)

    def disagreement(self, obs: Tensor, action: Tensor, name: str) -> Tensor:
        """(1 - weight) times the model's disagreement [B]."""
        return (1.0 - self.weight) * self.model.disagreement(obs, action, name)


def _all_if_none(valid: Tensor | None, like: Tensor) -> Tensor:
    return torch.ones_like(like) if valid is None else valid
