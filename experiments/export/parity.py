"""Whether exported files act as the policy does: the same observations through the policy itself,
through onnxruntime, and through the program of torch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from algorithms.learners.generative import picked
from experiments.export.files import quiet
from experiments.export.graph import FixedAction, Parts, acted
from mbrl.errors import CheckpointError
from mbrl.types import Dataset

ROWS = 1000
STEPS = 20  # of each sequence that a policy with a state is compared along
LIMIT = 1e-6  # largest difference of an action, over the range of the actions

Run = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@dataclass
class Parity:
    """The largest differences: of actions over their range (discrete: the number of differing
    ones), of the score (over itself where it is above 1), and the number of rows where policy and
    file disagree on the fallback."""

    rows: int
    action: float = 0.0
    out_of_data: float = 0.0
    fallback_used: int = 0
    compared: list[str] = field(default_factory=list)

    def add(self, other: "Parity") -> None:
        self.action = _larger(self.action, other.action)
        self.out_of_data = _larger(self.out_of_data, other.out_of_data)
        self.fallback_used = max(self.fallback_used, other.fallback_used)

    @property
    def holds(self) -> bool:
        return _larger(self.action, self.out_of_data) <= LIMIT and self.fallback_used == 0


def _larger(a: float, b: float) -> float:
    """What is no number is larger than all."""
    return float(np.maximum(a, b))


def observations(parts: Parts, dataset: Dataset | None, rows: int = ROWS) -> Tensor:
    """Raw observations [rows, S] float32: half of them of the data, evenly spread, and half around
    them (three deviations); without data, normal ones of three sizes."""
    generator = Generator().manual_seed(0)
    noise = torch.randn(rows, parts.spec.obs_dim, generator=generator)
    if dataset is None:
        sizes = torch.tensor([0.3, 1.0, 3.0])[torch.arange(rows) % 3]
        return noise * sizes[:, None]
    data = dataset.transitions.obs.cpu().float()
    picked = data[torch.linspace(0, len(data) - 1, rows, dtype=torch.float64).long()]
    around = picked + 3 * data.std(0, correction=0) * noise
    return torch.where((torch.arange(rows) % 2 == 0)[:, None], picked, around)


def compare(parts: Parts, folder: Path, dataset: Dataset | None) -> Parity:
    """Compare the files in `folder` with the policy. Raises `CheckpointError` where an action, the
    score or the choice of the fallback differs by more than the limit."""
    obs = observations(parts, dataset)
    parity = Parity(rows=len(obs))
    for name, run in (
        ("policy.onnx", onnx_runner(folder / "policy.onnx")),
        ("policy.pt2", torch_runner(folder / "policy.pt2", parts)),
    ):
        one = _along(parts, run, obs) if parts.stateful else _at_once(parts, run, obs)
        if not one.holds:
            raise CheckpointError(message(name, one, parts))
        parity.add(one)
        parity.compared.append(name)
    return parity


def message(name: str, parity: Parity, parts: Parts) -> str:
    """What differs, and what helps."""
    actions = (
        f"{parity.action:.0f} of {parity.rows} actions"
        if parts.spec.discrete
        else f"actions by {parity.action:.2g} of their range"
    )
    text = (
        f"{name} differs from the policy: {actions}, the out-of-data score by "
        f"{parity.out_of_data:.2g}, the fallback in {parity.fallback_used} rows; at most "
        f"{LIMIT:g} (and 0 actions of a discrete task) may differ. Nothing was written"
    )
    if parts.dtype == torch.float32:
        text += ". --precision float64 computes with twice the digits"
    return text


def onnx_runner(path: Path) -> Run:
    """Runs an ONNX file on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(values: dict[str, Tensor]) -> dict[str, Tensor]:
        results = session.run(None, {k: v.numpy() for k, v in values.items()})
        return {k: torch.from_numpy(np.asarray(v)) for k, v in zip(names, results, strict=True)}

    return run


def torch_runner(path: Path, parts: Parts) -> Run:
    """Runs a program that `torch.export` saved."""
    with quiet():
        module: Any = torch.export.load(path).module()

    def run(values: dict[str, Tensor]) -> dict[str, Tensor]:
        with torch.no_grad():
            return dict(zip(parts.outputs, module(*values.values()), strict=True))

    return run


@torch.no_grad()
def _at_once(parts: Parts, run: Run, obs: Tensor) -> Parity:
    values, limits = {"obs": obs}, {}
    if parts.spec.action_mask:
        draw = Generator().manual_seed(2)
        mask = torch.rand(len(obs), parts.spec.num_actions or 0, generator=draw) < 0.5
        mask[torch.arange(len(obs)), torch.arange(len(obs)) % mask.shape[1]] = True
        values["action_mask"], limits = mask, {"mask": mask}
    own = parts.policy(obs.to(parts.dtype), **limits)
    cloned = {} if isinstance(parts.fallback, FixedAction) else limits
    result = run(values)
    if hasattr(parts.policy, "greedy_options"):
        own = as_good(parts.policy, obs.to(parts.dtype), result["action"])
    expected = acted(parts, obs, own, cloned)
    return _difference(parts, expected, result)


def as_good(policy: Any, obs: Tensor, action: Tensor) -> Tensor:
    """The one nearest to `action` [B, A] of the options at `obs` whose values are the largest but
    for rounding: where two are, the policy itself has no reason for either."""
    options, values = policy.greedy_options(obs)
    tied = values >= values.amax(0) - LIMIT * values.abs().amax(0)
    options = policy.scale.to_task(options)
    away = (options - action.to(options)).abs().amax(-1).masked_fill(~tied, torch.inf)
    return picked(options, away.argmin(0))


@torch.no_grad()
def _along(parts: Parts, run: Run, obs: Tensor) -> Parity:
    """Both act for some steps, each with its own state and its own earlier actions."""
    rows = len(obs) // STEPS
    generator = Generator().manual_seed(1)
    rewards = torch.randn(STEPS, rows, generator=generator)
    own_state: Tensor | None = None
    values = dict(zip(parts.inputs, parts.example(rows), strict=True))
    total = Parity(rows=rows * STEPS)
    for step, now in enumerate(obs[: rows * STEPS].view(rows, STEPS, -1).unbind(1)):
        own, own_state = parts.policy.step(now.to(parts.dtype), own_state, None)
        expected = acted(parts, now, own, {})
        result = run(values | {"obs": now.contiguous()})
        total.add(_difference(parts, expected, result))
        reward = rewards[step]
        own_state = parts.policy.observe_reward(
            own_state, reward.to(parts.dtype), expected[0].to(parts.dtype)
        )
        values["state"], values["previous_action"] = result["next_state"], result["action"]
        values["previous_reward"] = reward
    return total


def _difference(parts: Parts, expected: list[Tensor], result: dict[str, Tensor]) -> Parity:
    action, given = expected[0], result["action"]
    parity = Parity(rows=len(action))
    if action.shape != given.shape or action.dtype != given.dtype:
        raise CheckpointError(
            f"the file gives actions {tuple(given.shape)} of {given.dtype}, the policy "
            f"{tuple(action.shape)} of {action.dtype}. Nothing was written"
        )
    if parts.spec.discrete:
        parity.action = float((action != given).sum())
    else:
        span = torch.tensor(parts.spec.action_high) - torch.tensor(parts.spec.action_low)
        parity.action = float(((action - given).double().abs() / span.double()).max())
    if parts.score is not None:
        score = expected[1].double()
        apart = (score - result["out_of_data"].double()).abs() / score.clamp_min(1.0)
        parity.out_of_data = float(apart.max())
    if parts.fallback is not None:
        parity.fallback_used = int((expected[2] != result["fallback_used"]).sum())
    return parity
