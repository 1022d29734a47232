"""Weights that change as training goes on. Plain arithmetic."""

import math

EPOCHS = 150  # that EPO's phases last in the authors' code


def grown(step: int, ramp: int) -> float:
    """min(1, `step` / `ramp`): how far a schedule of `ramp` steps has come."""
    return min(1.0, step / ramp)


def faded(step: int, ramp: int) -> float:
    """From 1 to 0 by a half cosine over `ramp` steps."""
    return (1 + math.cos(math.pi * grown(step, ramp))) / 2


def phase_weight(step: int, epochs: int = EPOCHS) -> float:
    """The weight of EPO's entropy band, arXiv 2509.22576, as in the authors' code. With p from 0 to
    1 in either half of `epochs`: 1 - 0.2 (1 - e^(-2 p)) in the first, 0.8 e^(-3 p) in the second,
    whose end lasts."""
    place = min(step / epochs, 1.0)
    if place < 0.5:
        return 1 - 0.2 * (1 - math.exp(-2 * 2 * place))
    return 0.8 * math.exp(-3 * (2 * place - 1))
