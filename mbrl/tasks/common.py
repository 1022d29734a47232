"""Small functions that the task files share: device draws, action checks, angles, masks."""

import math

import torch
from torch import Tensor

from mbrl.errors import ConfigError


def uniform(
    count: int,
    low: Tensor | float,
    high: Tensor | float,
    size: int,
    generator: torch.Generator,
) -> Tensor:
    """[count, size] float64 uniform draws on [low, high), on the generator's device.

    Drawn in float64 whatever the task's precision, so that one seed gives the same starts in all.
    """
    unit = torch.rand(
        (count, size), generator=generator, device=generator.device, dtype=torch.float64
    )
    return low + (high - low) * unit


def normal(count: int, size: int, generator: torch.Generator) -> Tensor:
    """[count, size] float64 standard normal draws on the generator's device."""
    return torch.randn(
        (count, size), generator=generator, device=generator.device, dtype=torch.float64
    )


def discrete_action(task: str, action: Tensor, count: int) -> Tensor:
    """`action` [B] checked to be whole numbers in 0..count-1 (the range on the CPU only, because
    elsewhere the check would wait for the device)."""
    if action.ndim != 1 or action.dtype.is_floating_point or action.dtype == torch.bool:
        raise ConfigError(
            f"{task}: discrete actions are whole numbers of shape [B], got "
            f"{tuple(action.shape)} {action.dtype}; pass int64 indices 0..{count - 1}"
        )
    if action.device.type == "cpu" and len(action):
        low, high = (int(v) for v in torch.aminmax(action))
        if low < 0 or high >= count:
            raise ConfigError(f"{task}: action {low if low < 0 else high} is not in 0..{count - 1}")
    return action


def continuous_action(task: str, action: Tensor, size: int) -> Tensor:
    """`action` checked to be [B, size] floats (not clipped)."""
    if action.ndim != 2 or action.shape[1] != size or not action.dtype.is_floating_point:
        raise ConfigError(
            f"{task}: continuous actions are floats of shape [B, {size}], got "
            f"{tuple(action.shape)} {action.dtype}"
        )
    return action


def no_wider(action: Tensor, state: Tensor) -> Tensor:
    """`action` in the precision of `state` where its own is higher, so that states keep theirs."""
    return action.to(state.dtype) if action.dtype == torch.float64 else action


def check_dtype(task: str, dtype: torch.dtype) -> None:
    """Tasks compute in float32 or float64 and nothing else."""
    if dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"{task}: dtype must be torch.float32 or torch.float64, got {dtype}")


def wrap_angle(angle: Tensor) -> Tensor:
    """The same angle in [-pi, pi), radians."""
    return torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi


def on_circle(cosine: Tensor, sine: Tensor, tolerance: float = 1e-3) -> Tensor:
    """Whether (cosine, sine) can be those of an angle: the squared radius is 1 within tolerance."""
    return (cosine.square() + sine.square() - 1.0).abs() <= tolerance


def finite_rows(values: Tensor) -> Tensor:
    """[B] bool: rows of [B, S] without NaN or infinity."""
    return torch.isfinite(values).all(dim=-1)


def hashed_uniform(seed: Tensor, counter: Tensor) -> Tensor:
    """[B] float64 in [0, 1), a fixed function of two whole numbers [B]: draws that a state can
    carry as a seed and a counter. SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable
    pseudorandom number generators"), twice."""
    mixed = _mixed(_mixed(seed.long()) ^ counter.long())
    return _shifted(mixed, 11).double() * 2.0**-53


def _mixed(value: Tensor) -> Tensor:
    value = value - 0x61C8864680B583EB  # the golden gamma, as a signed number
    value = (value ^ _shifted(value, 30)) * -0x40A7B892E31B1A47
    value = (value ^ _shifted(value, 27)) * -0x6B2FB644ECCEEE15
    return value ^ _shifted(value, 31)


def _shifted(value: Tensor, bits: int) -> Tensor:
    """Shift to the right without the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
