"""Analytic experts: controllers that need no training, as batched functions from observations to
actions. `expert("Pendulum-v1")` is one; its mean return is the task's expert reference."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from scipy.linalg import solve_discrete_are
from scipy.sparse import csr_array
from torch import Tensor

from mbrl.errors import unknown_name
from mbrl.tasks.classic import Pendulum
from mbrl.tasks.common import wrap_angle
from mbrl.tasks.door_chain import door_chain_expert
from mbrl.tasks.mujoco import MujocoTask
from mbrl.tasks.point_maze import LAYOUTS, maze_expert
from mbrl.tasks.push_blocks import MOST
from mbrl.tasks.push_planner import push_expert
from mbrl.tasks.synthetic import CartPoleSwingUp

Policy = Callable[[Tensor], Tensor]


def lqr_gain(a: np.ndarray, b: np.ndarray, q: np.ndarray, r: np.ndarray) -> np.ndarray:
    """[nu, n] gain K of u = -K s that minimises the sum of s'Qs + u'Ru under s' = As + Bu."""
    cost = solve_discrete_are(a, b, q, r)
    return np.linalg.solve(r + b.T @ cost @ b, b.T @ cost @ a)


def central_differences(
    function: Callable[[Tensor, Tensor], Tensor], size: int, actions: int, step: float = 1e-5
) -> tuple[np.ndarray, np.ndarray]:
    """(A [size, size], B [size, actions]) of s' = function(s, u), batched, around zero."""
    nudge = step * torch.eye(size + actions, dtype=torch.float64)
    rows = torch.cat([nudge, -nudge])
    reached = function(rows[:, :size], rows[:, size:])
    slope = (reached[: size + actions] - reached[size + actions :]).T / (2 * step)
    return slope[:, :size].numpy(), slope[:, size:].numpy()


# --- classic tasks -------------------------------------------------------------------------------


def pendulum_expert() -> Policy:
    """Value iteration on the task's own step: a 301 x 201 grid of angle and speed, 9 torques,
    discount 0.995, 95 sweeps; then one step ahead over 81 torques. About a second to build."""
    task = Pendulum(dtype=torch.float64)
    angles = torch.linspace(-math.pi, math.pi, 301, dtype=torch.float64)
    speeds = torch.linspace(-8.0, 8.0, 201, dtype=torch.float64)
    grid = torch.cartesian_prod(angles, speeds)
    corners, weights, rewards = _pendulum_steps(task, grid, 9)
    ends = np.arange(0, 4 * rewards.numel() + 1, 4)
    parts = [part.flatten(1).T.flatten().numpy() for part in (weights, corners)]
    ahead = csr_array((*parts, ends), shape=(rewards.numel(), len(grid)))
    value = torch.zeros(len(grid), dtype=torch.float64)
    for _ in range(95):
        expected = torch.from_numpy(ahead @ value.numpy()).view_as(rewards)
        value = (rewards + 0.995 * expected).amax(dim=0)

    def act(obs: Tensor) -> Tensor:
        angle = torch.atan2(obs[:, 1], obs[:, 0])
        state = torch.stack([angle, obs[:, 2]], dim=-1).cpu().double()
        corner, weight, reward = _pendulum_steps(task, state, 81)
        best = (reward + 0.995 * (value[corner] * weight).sum(dim=0)).argmax(dim=0)
        return (best * (4.0 / 80) - 2.0).to(obs)[:, None]

    return act


def _pendulum_steps(task: Pendulum, state: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """For `count` even torques: grid indices [4, count, B] around the state reached, their
    bilinear weights, and the rewards [count, B]."""
    torque = torch.linspace(-2.0, 2.0, count, dtype=torch.float64)
    rows = state.repeat(count, 1)
    step = task.step(rows, torque.repeat_interleave(len(state))[:, None])
    column = (wrap_angle(step.state[:, 0]) + math.pi) / (2 * math.pi) * 300
    row = (step.state[:, 1] + 8.0) / 16.0 * 200
    left, low = column.floor().clamp(0, 299), row.floor().clamp(0, 199)
    across, up = column - left, row - low
    first = (left * 201 + low).long()
    corners = torch.stack([first, first + 1, first + 201, first + 202])
    weights = torch.stack(
        [(1 - across) * (1 - up), (1 - across) * up, across * (1 - up), across * up]
    )
    shape = (4, count, len(state))
    return corners.view(shape), weights.view(shape), step.reward.view(shape[1:])


def cartpole_expert() -> Policy:
    """Push towards where the pole leans and drifts."""

    def act(obs: Tensor) -> Tensor:
        x, x_dot, theta, theta_dot = obs.unbind(-1)
        return (0.1 * x + 0.2 * x_dot + theta + 0.5 * theta_dot > 0).long()

    return act


def mountain_car_expert() -> Policy:
    """Push along the velocity."""
    return lambda obs: 2 * (obs[:, 1] >= 0).long()


def mountain_car_continuous_expert() -> Policy:
    """Push along the velocity with 0.2 only, because the cost is quadratic."""
    return lambda obs: 0.2 * obs[:, 1:].sign()


def acrobot_expert() -> Policy:
    """Torque along the second joint's speed, which pumps energy in."""
    return lambda obs: 2 * (obs[:, 5] >= 0).long()


# --- cart-pole swing-up --------------------------------------------------------------------------

# Pump, centring stiffness and damping of the swing-up phase; the angle (rad) below which the linear
# controller takes over; its force weight. From a random search on the mean return: 446.1, and still
# 445.6 with action noise of 0.1, where the search's best point (450.5) has lost some episodes.
SWING_UP = (50.0, 50.0, 17.0, 0.85, 0.15)


def swing_up_expert(settings: tuple[float, ...] = SWING_UP) -> Policy:
    """Pump the pole's energy up to that of the upright by accelerating the cart, then balance with
    a linear-quadratic regulator; Åström & Furuta, "Swinging up a pendulum by energy control"."""
    pump, stiffness, damping, catch, force_weight = settings
    task = CartPoleSwingUp(dtype=torch.float64)
    a, b = central_differences(lambda s, u: task.step(s, u).state, 4, 1)
    weights = np.diag([0.5, 0.05, 1.0, 0.05])
    gain = torch.from_numpy(lqr_gain(a, b, weights, np.array([[force_weight]])))[0]

    def act(obs: Tensor) -> Tensor:
        x, x_dot, cosine, sine, theta_dot = obs.cpu().double().unbind(-1)
        theta = torch.atan2(sine, cosine)
        energy = theta_dot.square() / 60 + 0.49 * (cosine - 1)  # joules, 0 at rest upright
        x_acc = pump * energy * theta_dot * cosine - stiffness * x - damping * x_dot
        theta_acc = (9.8 * sine - x_acc * cosine) / (2 / 3)
        force = 1.1 * x_acc + 0.05 * (theta_acc * cosine - theta_dot.square() * sine)
        balance = -(torch.stack([x, x_dot, theta, theta_dot], dim=-1) @ gain)
        action = torch.where(theta.abs() + 0.1 * theta_dot.abs() < catch, balance, force / 10)
        return action.clamp(-1.0, 1.0).to(obs)[:, None]

    return act


# --- MuJoCo tasks --------------------------------------------------------------------------------


def _upright_gain(task_id: str, weights: list[float], effort: float) -> Tensor:
    """[2 nq] regulator gains of a MuJoCo task around its upright rest, from its own step."""
    task = MujocoTask(task_id, dtype=torch.float64)
    nq = len(weights) // 2

    def function(state: Tensor, action: Tensor) -> Tensor:
        start = task.state_from_simulator(state[:, :nq], state[:, nq:])
        return task.step(start, action).state[:, : 2 * nq]

    a, b = central_differences(function, 2 * nq, 1)
    return torch.from_numpy(lqr_gain(a, b, np.diag(weights), np.array([[effort]])))[0]


def inverted_pendulum_expert() -> Policy:
    """A linear-quadratic regulator with 4 gains."""
    gain = _upright_gain("InvertedPendulum-v5", [1.0, 10.0, 0.1, 0.1], 0.1)
    return lambda obs: -(obs @ gain.to(obs))[:, None].clamp(-3.0, 3.0)


def inverted_double_pendulum_expert() -> Policy:
    """A linear-quadratic regulator with 6 gains."""
    gain = _upright_gain("InvertedDoublePendulum-v5", [1.0, 10.0, 10.0, 0.1, 0.1, 0.1], 0.1)

    def act(obs: Tensor) -> Tensor:
        hinges = torch.atan2(obs[:, 1:3], obs[:, 3:5])
        state = torch.cat([obs[:, :1], hinges, obs[:, 5:8]], dim=-1)
        return -(state @ gain.to(obs))[:, None].clamp(-1.0, 1.0)

    return act


def reacher_expert() -> Policy:
    """Inverse kinematics of the two links (0.1 and 0.11 m), the elbow on the side that is nearer
    now, then proportional-derivative torques, half of them on the elbow."""

    def act(obs: Tensor) -> Tensor:
        joint = torch.atan2(obs[:, 2:4], obs[:, :2])
        x, y = obs[:, 4:5], obs[:, 5:6]
        bend = ((x.square() + y.square() - 0.1**2 - 0.11**2) / (2 * 0.1 * 0.11)).clamp(-1, 1)
        elbow = bend.acos() * torch.tensor([1.0, -1.0]).to(obs)  # [B, 2]: either side
        shoulder = torch.atan2(y, x) - torch.atan2(0.11 * elbow.sin(), 0.1 + 0.11 * elbow.cos())
        errors = torch.stack([wrap_angle(shoulder - joint[:, :1]), elbow - joint[:, 1:]], dim=-1)
        nearest = errors.abs().amax(dim=-1).argmin(dim=-1)
        error = errors[torch.arange(len(obs), device=obs.device), nearest]
        torque = 0.4 * error - 0.08 * obs[:, 6:8]
        return (torque * torch.tensor([1.0, 0.5]).to(obs)).clamp(-1.0, 1.0)

    return act


def winding_road_expert() -> Policy:
    """Pure pursuit of a point 5 m ahead along the axis, moved to the free side of the nearest
    parked car while that is near, at a speed that the next bend allows."""

    def act(obs: Tensor) -> Tensor:
        off, error, speed = 4 * obs[:, 0], obs[:, 1], 8 * obs[:, 2]
        points = 10 * obs[:, 7:].view(len(obs), -1, 2)
        way, cars = points[:, :5], points[:, 5:]
        # how far each car stands left of the centre line: it is 1.8 m to one side
        target = torch.zeros_like(off)
        near = torch.full_like(off, math.inf)
        for i in range(2):
            ahead = cars[:, i, 0] * error.cos() - cars[:, i, 1] * error.sin()
            across = off + cars[:, i, 1] * error.cos() + cars[:, i, 0] * error.sin()
            close = (ahead > -4) & (ahead < 14) & (ahead.abs() < near)
            target = torch.where(close, -0.9 * straight_sign(across, way, cars[:, i]), target)
            near = torch.where(close, ahead.abs(), near)
        ahead, left = way[:, 0].unbind(-1)
        left = left + target
        curvature = 2 * left / (ahead.square() + left.square())
        steer = (2.5 * curvature).atan() / 0.5
        bend = (torch.atan2(way[:, 2, 1], way[:, 2, 0]) / 7).abs()
        wanted = (1.2 / bend.clamp_min(0.03)).sqrt().clamp(3.0, 6.0)
        return torch.stack([(wanted - speed).clamp(-0.7, 0.7), steer], -1).clamp(-1, 1)

    return act


def straight_sign(across: Tensor, way: Tensor, car: Tensor) -> Tensor:
    """[B] 1 where a car at `car` [B, 2] stands left of the line through the waypoints [B, 5, 2]
    around it, -1 where right; `across` decides where the car is behind all of them."""
    after = way[:, 1:] - way[:, :-1]
    middle = (way[:, 1:] + way[:, :-1]) / 2
    nearest = (middle - car[:, None]).square().sum(-1).argmin(-1)
    rows = torch.arange(len(car), device=car.device)
    along, gap = after[rows, nearest], car - way[rows, nearest]
    left = along[:, 0] * gap[:, 1] - along[:, 1] * gap[:, 0]
    return torch.where(car[:, 0] > 3.0, left, across).sign()


EXPERTS: dict[str, Callable[[], Policy]] = {
    "Pendulum-v1": pendulum_expert,
    "CartPole-v1": cartpole_expert,
    "MountainCar-v0": mountain_car_expert,
    "MountainCarContinuous-v0": mountain_car_continuous_expert,
    "Acrobot-v1": acrobot_expert,
    "CartPoleSwingUp-v0": swing_up_expert,
    "InvertedPendulum-v4": inverted_pendulum_expert,
    "InvertedPendulum-v5": inverted_pendulum_expert,
    "InvertedDoublePendulum-v4": inverted_double_pendulum_expert,
    "InvertedDoublePendulum-v5": inverted_double_pendulum_expert,
    "Reacher-v4": reacher_expert,
    "Reacher-v5": reacher_expert,
    "WindingRoad-v0": winding_road_expert,
    "DoorChain-v0": lambda: door_chain_expert,
    **{f"PointMaze-{maze}-v0": partial(partial, maze_expert, maze) for maze in LAYOUTS},
    **{f"PushBlocks-{blocks}-v0": lambda: push_expert for blocks in range(1, MOST + 1)},
}


def expert(task_id: str) -> Policy:
    """The analytic expert of `task_id`: observations [B, S] to actions [B, A] (or [B] int64)."""
    if task_id not in EXPERTS:
        raise unknown_name("analytic expert", task_id, EXPERTS)
    return EXPERTS[task_id]()
