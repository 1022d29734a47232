"""Any gymnasium environment behind the protocol of the tasks: copies of it, stepped one after the
other, whose observations are flat vectors."""

from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from torch import Tensor

from mbrl.errors import ConfigError, TaskError
from mbrl.spaces import Flattener
from mbrl.tasks.base import LiveStep
from mbrl.tasks.common import check_dtype, continuous_action, discrete_action
from mbrl.tasks.gym_source import declared_limit, maker, require_no_running_statistics
from mbrl.types import EXACT, Spec

HEAD = 3  # entries of a state before the observation: environment, ticket, steps of the episode
CHECKED = 20  # steps of each copy whose observations are compared with their space


@dataclass
class Copy:
    """One environment: the ticket of the state that it is in (None: free), and steps so far."""

    env: Any
    ticket: int | None = None
    stepped: int = 0


class GymTask:
    """`source` is an id of gymnasium, an entry point "module:make_env", a function that makes an
    environment, or an instance, of which deep copies are used (where it cannot be copied, itself
    and no other). An instance of a registered id that was changed by hand is no task for a file:
    its name says what was changed.

    An environment goes on from where it is and from nowhere else, so a state [B, K] here is not
    enough to return to: it holds the number of the environment, a ticket that one step uses up,
    the steps of the episode, the observation and the action mask. Stepping a state a second time
    raises `ConfigError`; so does what needs states from observations (true dynamics, rules of
    ends). An episode is cut where the environment says so, and after `max_episode_steps`; by
    default the limit of its TimeLimit, or the one it declares (an attribute `max_episode_steps` or
    `max_steps`). Nothing resets itself.

    Starts are `env.reset(seed=...)` with seeds from the caller's generator. Continuous actions are
    clipped to the bounds in the space's type. `categories` is how Discrete observations are
    flattened (`mbrl.spaces`), `copies` how many environments run side by side where the caller has
    no number, `check` whether the first observations are compared with their space; other
    options go to the environment. Raises `ConfigError` for spaces that are not taken, `TaskError`
    where the environment fails.
    """

    def __init__(
        self,
        source: Any,
        *,
        max_episode_steps: int | None = None,
        categories: Literal["one-hot", "number"] = "one-hot",
        copies: int = 16,
        check: bool = True,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> None:
        self._maker = maker(source, options)
        name = self._maker.name
        check_dtype(name, dtype)
        limits = (copies, 1 if max_episode_steps is None else max_episode_steps)
        if not all(isinstance(limit, Integral) and limit >= 1 for limit in limits):
            raise ConfigError(
                f"{name}: copies is {copies} and max_episode_steps {max_episode_steps}; both must "
                "be whole numbers of at least 1"
            )
        self.device, self.dtype = torch.device(device), dtype
        self.copies = copies if self._maker.most is None else 1
        self._check, self._tickets = check, 0
        self._copies: list[Copy] = []
        first = self._new()
        env = first.env
        require_no_running_statistics(env, name)
        own = declared_limit(env)
        if own is not None and max_episode_steps is not None and max_episode_steps > own:
            raise ConfigError(
                f"{name}: max_episode_steps is {max_episode_steps} and the environment ends its "
                f"episodes after {own} by itself; give at most {own}, or an environment with that "
                f"limit: lambda: gymnasium.make(..., max_episode_steps={max_episode_steps})"
            )
        self._flat = Flattener(env.observation_space, name, categories)
        self._space = env.action_space
        obs, info = self._reset(first, 0)
        del obs
        given = {"max_episode_steps": max_episode_steps, **self._maker.options}
        if categories != "one-hot":
            given["categories"] = categories
        self.spec = Spec.from_spaces(
            env.observation_space,
            env.action_space,
            task=name,
            categories=categories,
            max_episode_steps=max_episode_steps or own,
            task_options={k: v for k, v in given.items() if v is not None},
            action_mask="action_mask" in info,
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` states at the starts of new episodes, each in an environment that is free."""
        seeds = torch.randint(
            2**31 - 1, (count,), generator=generator, device=generator.device
        ).tolist()
        rows = []
        for seed in seeds:
            copy = next((c for c in self._copies if c.ticket is None), None) or self._new()
            obs, info = self._reset(copy, seed)
            rows.append(self._row(copy, 0, obs, info))
        masks = (self.spec.num_actions or 0) if self.spec.action_mask else 0
        table = np.array(rows).reshape(count, HEAD + self.spec.obs_dim + masks)  # count may be 0
        return torch.from_numpy(table).to(self.device)

    def restart(self, state: Tensor, ended: Tensor, generator: torch.Generator) -> Tensor:
        """`state` [B, K] with new starts in the rows that `ended` [B] marks."""
        state = state.clone()
        self.release(state[ended])
        state[ended] = self.reset(int(ended.sum()), generator)
        return state

    def release(self, state: Tensor) -> None:
        """Make the environments of these states free, as far as they are in them still."""
        for number, ticket in state[:, :2].long().tolist():
            if number < len(self._copies) and self._copies[number].ticket == ticket:
                self._copies[number].ticket = None

    def holds(self, state: Tensor) -> bool:
        """Whether all these states can be stepped: not those of another process."""
        return all(
            number < len(self._copies) and self._copies[number].ticket == ticket
            for number, ticket in state[:, :2].long().tolist()
        )

    def observe(self, state: Tensor) -> Tensor:
        """Observations [B, S] in `dtype`."""
        return state[:, HEAD : HEAD + self.spec.obs_dim].to(self.dtype)

    def action_mask(self, state: Tensor) -> Tensor | None:
        """[B, n] bool: the actions allowed in these states; None where the environment's `info` has
        no "action_mask"."""
        return state[:, HEAD + self.spec.obs_dim :].bool() if self.spec.action_mask else None

    def step(self, state: Tensor, action: Tensor) -> LiveStep:
        """One step of each environment, in row order. Where one fails, all are given back."""
        try:
            return self._stepped(state, action)
        except TaskError:
            for number in state[:, 0].long().tolist():
                self._copies[number].ticket = None
            raise

    def _stepped(self, state: Tensor, action: Tensor) -> LiveStep:
        actions, size = self._actions(action), HEAD + self.spec.obs_dim
        new, reward, terminated, truncated = [], [], [], []
        copies = self._at(state)
        for copy, row, chosen in zip(copies, state.tolist(), actions, strict=True):
            elapsed = int(row[2]) + 1
            obs, gain, ended, cut, info = self._step(copy, chosen, elapsed)
            limit = self.spec.max_episode_steps
            cut = cut or (limit is not None and elapsed >= limit and not ended)
            new.append(self._row(copy, elapsed, obs, info, over=ended))
            if ended or cut:
                copy.ticket = None
            reward.append(gain)
            terminated.append(ended)
            truncated.append(cut)
        rows = torch.from_numpy(np.stack(new)).to(self.device)
        step = LiveStep(
            rows,
            rows[:, HEAD:size].to(self.dtype),
            torch.tensor(reward, dtype=torch.float64).to(self.device, self.dtype),
            torch.tensor(terminated, device=self.device),
        )
        step.cut = torch.tensor(truncated, device=self.device)
        return step

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Raises `ConfigError`: an environment cannot be put into a state."""
        raise ConfigError(
            f"{self.spec.task} is a gymnasium environment, which cannot be put into the state of "
            "an observation; true dynamics need a task of this library (mbrl.tasks.base.Task)"
        )

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """Raises `ConfigError`: when an environment ends is not known from observations."""
        raise ConfigError(
            f"{self.spec.task} is a gymnasium environment, whose rule of ends is not known from "
            "observations; set termination to 'learned', or give the algorithm a model that has a "
            "rule: model=EnsembleDynamics(spec, termination=function)"
        )

    def _new(self) -> Copy:
        most = self._maker.most
        if most is not None and len(self._copies) >= most:
            raise ConfigError(
                f"{self._maker.name} was given as an instance that cannot be copied "
                "(copy.deepcopy fails, or leaves out what was changed by hand), and it is in an "
                "episode; give a function that makes one, or an entry point 'module:make_env', "
                "where several are needed (an evaluation beside learning, parallel copies)"
            )
        try:
            copy = Copy(self._maker.build())
        except (ConfigError, TaskError):
            raise
        except Exception as problem:  # whatever an environment's constructor raises
            raise TaskError(
                f"{self._maker.name} cannot be made: {type(problem).__name__}: {problem}"
            ) from problem
        self._copies.append(copy)
        return copy

    def _at(self, state: Tensor) -> list[Copy]:
        """The environments that are in these states."""
        numbers = state[:, 0].long().tolist()
        if not self.holds(state) or len(set(numbers)) < len(numbers):
            raise ConfigError(
                f"{self.spec.task}: this state was stepped already, or its episode is over; a "
                "gymnasium environment goes on only from where it is, so nothing can begin twice "
                "in one state (groups of episodes, pools of starts, forks)"
            )
        return [self._copies[number] for number in numbers]

    def _reset(self, copy: Copy, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        when = f" at reset(seed={seed})"
        try:
            answer = copy.env.reset(seed=seed)
        except Exception as problem:  # whatever an environment raises
            raise TaskError(self._failed(problem, when)) from problem
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict):
            raise TaskError(
                f"{self._maker.name}{when}: reset must return (observation, info), got "
                f"{type(answer).__name__}"
            )
        return self._flatten(copy, answer[0], when), answer[1]

    def _step(
        self, copy: Copy, action: Any, elapsed: int
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        when = f" at step {elapsed} of an episode"
        try:
            answer = copy.env.step(action)
        except Exception as problem:  # whatever an environment raises
            raise TaskError(self._failed(problem, f"{when}, action {action}")) from problem
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise TaskError(
                f"{self._maker.name}{when}: step must return (observation, reward, terminated, "
                f"truncated, info), got {len(answer) if isinstance(answer, tuple) else answer!r}"
            )
        obs, reward, terminated, truncated, info = answer
        gain = np.asarray(reward)
        if gain.size != 1 or gain.dtype.kind not in "fiub" or not np.isfinite(gain).all():
            raise TaskError(f"{self._maker.name}{when}: the reward is {reward!r}, not a number")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_) and not (
                np.size(flag) == 1 and flag in (0, 1)
            ):
                raise TaskError(f"{self._maker.name}{when}: {name} is {flag!r}, not True or False")
        late = self.spec.discrete and not self.spec.action_mask
        if late and isinstance(info, dict) and "action_mask" in info:
            raise TaskError(
                f"{self._maker.name}{when}: info has an 'action_mask' and at reset it had none; "
                "give one at reset too (all ones where every action is allowed), or at no step"
            )
        copy.stepped += 1
        flat = self._flatten(copy, obs, when)
        return flat, float(gain.reshape(-1)[0]), bool(terminated), bool(truncated), info

    def _flatten(self, copy: Copy, obs: Any, when: str) -> np.ndarray:
        flat = self._flat(obs, when)
        if self._check and copy.stepped <= CHECKED:
            self._flat.check(obs, when)
        if not np.isfinite(flat).all():
            entry = int(np.argmin(np.isfinite(flat)))
            raise TaskError(
                f"{self._maker.name}{when}: entry {entry} of the observation is {flat[entry]}, not "
                "a number"
            )
        if self.dtype == torch.float32 and copy.stepped <= CHECKED:
            _require_held(flat, f"{self._maker.name}{when}")
        return flat

    def _failed(self, problem: Exception, when: str) -> str:
        what = f"{type(problem).__name__}: {problem}"
        return f"{self._maker.name}{when}: the environment raised {what}"

    def _row(
        self, copy: Copy, elapsed: int, obs: np.ndarray, info: dict[str, Any], over: bool = False
    ) -> np.ndarray:
        self._tickets += 1
        copy.ticket = self._tickets
        head = [self._copies.index(copy), copy.ticket, elapsed]
        parts = [np.array(head, dtype=np.float64), obs]
        if self.spec.action_mask:
            parts.append(self._mask(info, elapsed, over))
        return np.concatenate(parts)

    def _mask(self, info: dict[str, Any], elapsed: int, over: bool) -> np.ndarray:
        """What may be done; everything where the episode is `over`, and nothing is."""
        count = self.spec.num_actions
        mask = np.asarray(info.get("action_mask"))
        if over and mask.shape == (count,) and not mask.any():
            mask = np.ones_like(mask)
        if mask.shape != (count,) or not mask.any():
            raise TaskError(
                f"{self.spec.task} at step {elapsed} of an episode: info['action_mask'] is {mask}; "
                f"it must hold {count} flags at every reset and step, at least one of them set "
                "unless the episode has ended"
            )
        return mask.astype(bool).astype(np.float64)

    def _actions(self, action: Tensor) -> list[Any]:
        task, space = self.spec.task, self._space
        if isinstance(space, gymnasium.spaces.Discrete):
            chosen = discrete_action(task, action, int(space.n)).tolist()
            return [space.dtype.type(int(space.start) + a) for a in chosen]
        given = continuous_action(task, action, self.spec.action_dim).detach().cpu().numpy()
        rows = given.astype(space.dtype).reshape(-1, *space.shape)
        return list(np.clip(rows, space.low, space.high))


def _require_held(flat: np.ndarray, where: str) -> None:
    """Raise `TaskError` for whole numbers, such as times, that 32 bits round, and for numbers that
    they cannot hold."""
    with np.errstate(over="ignore"):
        held = flat.astype(np.float32).astype(np.float64)
    bad = (np.abs(flat) > EXACT) & (flat == np.floor(flat)) & (held != flat)  # inf, too
    if bad.any():
        entry = int(np.argmax(bad))
        raise TaskError(
            f"{where}: entry {entry} of the observation is {flat[entry]:.17g}, which 32-bit "
            "numbers do not keep; subtract an offset (times: since the episode began) or change "
            "the unit"
        )
