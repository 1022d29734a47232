"""Gymnasium's MuJoCo tasks over explicit state tensors: stepping a row gives what the environment
would give, bit for bit, in whatever order rows come and on however many threads."""

import importlib.util
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mbrl.errors import ConfigError, unknown_name
from mbrl.tasks.base import Step
from mbrl.tasks.common import check_dtype, continuous_action
from mbrl.tasks.mujoco_table import ROBOTS, Robot, Rows, ant_extra_v5, usable
from mbrl.tasks.mujoco_variants import VARIANTS
from mbrl.tasks.references import REFERENCE_RETURNS
from mbrl.types import Spec

Array = np.ndarray
Worker = tuple[Any, Any]  # a thread's model and its data
MUJOCO_TASKS = {**ROBOTS, **VARIANTS}


class MujocoTask:
    """One of gymnasium's MuJoCo environments, version 4 or 5, or a variant of one.

    The state [B, K] is float64 whatever `dtype` says: positions, speeds, the constraint solver's
    warm start, and the few numbers that gymnasium reads from the simulator after a step and that
    lag behind it by one integrator stage (tip and fingertip positions, contact and constraint
    forces); then the numbers of the model that an episode draws, where a variant has any. With
    these, resuming from a state is exact. Rows are stepped on `threads` threads of
    the CPU; observations and rewards come in `dtype` on `device`. Actions beyond the bounds are
    clipped by the actuators, while the control cost takes them as given, as in gymnasium.

    Two of gymnasium's options change what is observed, and `spec.obs_dim` with it:
    `exclude_current_positions_from_observation=False` puts the root's x (Swimmer, Ant: x and y)
    first, `use_contact_forces=True` (Ant-v4) appends the contact forces and charges for them.
    """

    def __init__(
        self,
        task_id: str,
        *,
        threads: int = 1,
        exclude_current_positions_from_observation: bool = True,
        use_contact_forces: bool = False,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if task_id not in MUJOCO_TASKS:
            raise unknown_name("MuJoCo task", task_id, MUJOCO_TASKS)
        if threads < 1:
            raise ConfigError(f"{task_id}: threads must be at least 1, got {threads}")
        check_dtype(task_id, dtype)
        import mujoco

        self.device, self.dtype, self.threads = torch.device(device), dtype, threads
        self._mujoco, self._robot = mujoco, MUJOCO_TASKS[task_id]
        if use_contact_forces:
            self._robot = with_contact_forces(task_id, self._robot)
        if not exclude_current_positions_from_observation:
            self._robot = with_positions(task_id, self._robot)
        self._model = self._prepared()
        models = [self._model] * threads
        if self._robot.varied is not None:  # each thread writes the numbers of its row
            models = [self._prepared() for _ in range(threads)]
        self._workers = [(model, mujoco.MjData(model)) for model in models]
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        parts = (mujoco.mjtState.mjSTATE_QPOS, mujoco.mjtState.mjSTATE_QVEL)
        self._parts = sum(int(p) for p in (*parts, mujoco.mjtState.mjSTATE_WARMSTART))
        self._nq, self._nv = int(self._model.nq), int(self._model.nv)
        self._core = self._nq + 2 * self._nv
        extra = self._robot.extra
        self._size = self._core + (len(extra(self._workers[0][1])) if extra else 0)
        self._varied = self._size  # where the numbers of the model begin
        self._size += self._robot.varied.size if self._robot.varied else 0
        self._dt = float(self._model.opt.timestep) * self._robot.frame_skip
        low, high = np.array(self._model.actuator_ctrlrange).T
        self.spec = Spec(
            task=task_id,
            obs_dim=self._robot.obs_dim,
            action_dim=int(self._model.nu),
            action_low=tuple(low.tolist()),
            action_high=tuple(high.tolist()),
            max_episode_steps=self._robot.max_episode_steps,
            reference_returns=REFERENCE_RETURNS.get(task_id),
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, K] from gymnasium's start distribution (other draws, same
        distribution)."""
        start = torch.from_numpy(np.array(self._model.qpos0))
        q, v = self._robot.start(count, generator, start, self._nv)
        varied = self._robot.varied.draw(count, generator) if self._robot.varied else None
        return self._settle(q, v, varied).to(self.device)

    def observe(self, state: Tensor) -> Tensor:
        """Observations [B, S] in `dtype`."""
        return self._robot.observe(self._rows(state.cpu())).to(self.device, self.dtype)

    def step(self, state: Tensor, action: Tensor) -> Step:
        """`frame_skip` simulator steps for each row; rewards and ends as gymnasium computes them
        from the simulator, not from the observation."""
        old = state.to("cpu", torch.float64).contiguous()
        control = continuous_action(self.spec.task, action, self.spec.action_dim)
        control = control.detach().to("cpu", torch.float64).contiguous()
        new = torch.empty_like(old)
        source, push, target = old.numpy(), control.numpy(), new.numpy()
        self._in_chunks(len(old), lambda worker, i: self._advance(worker, source, push, target, i))
        before, after = self._rows(old), self._rows(new)
        ended = self._robot.ended(after)
        reward = self._robot.reward(before, after, control, ended, self._dt)
        obs = self._robot.observe(after).to(self.device, self.dtype)
        return Step(
            new.to(self.device), obs, reward.to(self.device, self.dtype), ended.to(self.device)
        )

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """States with the hidden root coordinates 0. Impossible rows are those that are not finite
        or too large for the simulator, which hold the start pose, and those that no state shows (a
        speed at its clip of 10, sin and cos off the circle, a quaternion far from unit), which hold
        what can be read: the angle, the speed of 10.

        One step from the rebuilt state, against one from the true state under random actions
        (float32 observations; largest |error| / (1 + |value|) of an entry, over 3,000 to 6,000
        rows): InvertedPendulum 1e-7, InvertedDoublePendulum 5e-7, Reacher 2e-7, Swimmer 2e-6,
        Hopper 8e-7, HalfCheetah 2e-4 (99 in 100 below 4e-6), Walker2d 1e-5, Ant 8e-5 (99 in 100
        below 3e-6). With float64 observations all are below 3e-9. Rewards agree to 2e-6, except
        Ant's, which reads a torso position that lags: median error 4e-4, largest 0.09.
        """
        seen = obs.detach().to("cpu", torch.float64)
        q, v, possible = self._robot.invert(seen)
        readable = usable(seen)[:, None]
        q = torch.where(readable, q, torch.from_numpy(np.array(self._model.qpos0)))
        v = torch.where(readable, v, torch.zeros_like(v))
        varied = self._robot.varied.read(seen) if self._robot.varied else None
        if varied is not None:
            varied = torch.where(readable, varied, torch.ones_like(varied))
        state = self._settle(q, v, varied)
        if self._robot.restore is not None:
            extra = self._robot.restore(seen, state[:, self._core :])
            extra = torch.where(readable, extra, state[:, self._core :])
            state = torch.cat([state[:, : self._core], extra], dim=-1)
        return state.to(self.device), possible.to(self.device)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """The environment's rule read from `next_obs` alone."""
        return self._robot.terminates(next_obs)

    def state_from_simulator(
        self, qpos: Tensor, qvel: Tensor, varied: Tensor | None = None
    ) -> Tensor:
        """States [B, K] of positions [B, nq] and speeds [B, nv], as gymnasium's `set_state` leaves
        them after a reset: what logged `infos/qpos` and `infos/qvel` need to become states.
        `varied` [B, n] are the numbers that episodes draw, in the tasks that have any."""
        size = self._robot.varied.size if self._robot.varied else 0
        given = torch.empty(len(qpos), 0) if varied is None else varied
        parts = (("qpos", qpos, self._nq), ("qvel", qvel, self._nv), ("varied", given, size))
        for name, value, width in parts:
            if value.ndim != 2 or value.shape[1] != width:
                raise ConfigError(
                    f"{self.spec.task}: {name} must be [B, {width}], got {tuple(value.shape)}"
                )
        q, v, numbers = (value.to("cpu", torch.float64) for _, value, _ in parts)
        return self._settle(q, v, numbers).to(self.device)

    def _prepared(self) -> Any:
        model = load_model(self._robot.xml)
        if self._robot.prepare is not None:
            self._robot.prepare(model)
        return model

    def _rows(self, state: Tensor) -> Rows:
        nq, nv = self._nq, self._nv
        return Rows(state[:, :nq], state[:, nq : nq + nv], state[:, self._core :])

    def _settle(self, q: Tensor, v: Tensor, varied: Tensor | None = None) -> Tensor:
        """The states of positions and speeds after a fresh forward pass without control."""
        state = torch.empty((len(q), self._size), dtype=torch.float64)
        if varied is not None:
            state[:, self._varied :] = varied
        positions, speeds, target = q.numpy(), v.numpy(), state.numpy()
        self._in_chunks(len(q), lambda worker, i: self._place(worker, positions, speeds, target, i))
        return state

    def _place(self, worker: Worker, q: Array, v: Array, target: Array, i: int) -> None:
        model, data = worker
        if self._robot.varied is not None:
            self._robot.varied.write(model, target[i, self._varied :])
        self._mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:] = q[i], v[i]
        self._mujoco.mj_forward(model, data)
        self._read(worker, target[i])

    def _advance(self, worker: Worker, source: Array, push: Array, target: Array, i: int) -> None:
        model, data = worker
        if self._robot.varied is not None:
            self._robot.varied.write(model, source[i, self._varied :])
            target[i, self._varied :] = source[i, self._varied :]
        self._mujoco.mj_setState(model, data, source[i, : self._core], self._parts)
        data.ctrl[:] = push[i]
        self._mujoco.mj_step(model, data, nstep=self._robot.frame_skip)
        if self._robot.contact_forces:
            self._mujoco.mj_rnePostConstraint(model, data)
        self._read(worker, target[i])

    def _read(self, worker: Worker, row: Array) -> None:
        model, data = worker
        self._mujoco.mj_getState(model, data, row[: self._core], self._parts)
        if self._robot.extra is not None:
            row[self._core : self._varied] = self._robot.extra(data)

    def _in_chunks(self, count: int, work: Callable[[Worker, int], None]) -> None:
        """`work(worker, i)` for every row, a contiguous chunk of rows for each thread."""

        def chunk(thread: int) -> None:
            worker = self._workers[thread]
            for i in range(count * thread // self.threads, count * (thread + 1) // self.threads):
                work(worker, i)

        if self._pool is None:
            chunk(0)
        else:
            list(self._pool.map(chunk, range(self.threads)))


ROOTS = {"Swimmer": 2, "Hopper": 1, "HalfCheetah": 1, "Walker2d": 1, "Ant": 2}  # hidden entries


def with_positions(task_id: str, robot: Robot) -> Robot:
    """`robot` with the root's position in front of its observation."""
    hidden = ROOTS.get(task_id.split("-")[0])
    if hidden is None:
        raise ConfigError(
            f"{task_id} has no exclude_current_positions_from_observation: only "
            f"{', '.join(ROOTS)} hide the position of their root"
        )

    def observe(rows: Rows) -> Tensor:
        return torch.cat([rows.q[:, :hidden], robot.observe(rows)], dim=-1)

    def invert(obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, v, possible = robot.invert(obs[:, hidden:])
        return torch.cat([obs[:, :hidden], q[:, hidden:]], dim=-1), v, possible & usable(obs)

    restore = robot.restore
    return replace(
        robot,
        obs_dim=robot.obs_dim + hidden,
        observe=observe,
        invert=invert,
        terminates=lambda obs: robot.terminates(obs[:, hidden:]),
        restore=restore and (lambda obs, extra: restore(obs[:, hidden:], extra)),
    )


def with_contact_forces(task_id: str, robot: Robot) -> Robot:
    """Ant-v4 with the clipped contact forces of all 14 bodies, and their cost."""
    if task_id != "Ant-v4":
        raise ConfigError(f"{task_id} has no use_contact_forces: only Ant-v4 has")

    def observe(rows: Rows) -> Tensor:
        return torch.cat([robot.observe(rows), rows.extra[:, 2:].clamp(-1.0, 1.0)], dim=-1)

    def reward(old: Rows, new: Rows, action: Tensor, ended: Tensor, dt: float) -> Tensor:
        cost = 5e-4 * new.extra[:, 2:].clamp(-1.0, 1.0).square().sum(dim=-1)
        return robot.reward(old, new, action, ended, dt) - cost

    return replace(
        robot,
        obs_dim=robot.obs_dim + 84,
        observe=observe,
        reward=reward,
        extra=ant_extra_v5,
        restore=lambda obs, extra: torch.cat([extra[:, :2], obs[:, 27:]], dim=-1),
        contact_forces=True,
    )


def load_model(xml: str) -> Any:
    """The compiled model of one of gymnasium's asset files.

    HalfCheetah's file asks for a total mass through a compiler attribute that MuJoCo 4 deprecates
    with a line on the terminal at every load; setting the mass afterwards gives the same model.
    """
    import mujoco

    package = importlib.util.find_spec("gymnasium")
    if package is None or package.origin is None:
        raise ConfigError("the MuJoCo tasks need gymnasium's model files: install gymnasium")
    path = Path(package.origin).parent / "envs" / "mujoco" / "assets" / xml
    if not path.is_file():
        raise ConfigError(f"gymnasium's model file {path} is missing: install gymnasium>=1.1")
    text = path.read_text()
    mass = re.search(r'\ssettotalmass="([^"]*)"', text)
    if mass is None:
        return mujoco.MjModel.from_xml_string(text)
    model = mujoco.MjModel.from_xml_string(text.replace(mass.group(0), ""))
    mujoco.mj_setTotalmass(model, float(mass.group(1)))
    mujoco.mj_setConst(model, mujoco.MjData(model))
    return model
