"""Generators of random numbers: made from a seed, and put back into a state that was saved."""

import warnings

import numpy as np
import torch
from torch import Generator, Tensor


def generators(seed: int, device: torch.device) -> tuple[Generator, Generator]:
    """One generator for initial weights (always on the CPU, so that they do not depend on the
    device) and one for everything drawn while training."""
    initial = Generator().manual_seed(seed)
    running = Generator(device=device).manual_seed(seed + 1_000_003)
    return initial, running


def on_device(generator: Generator | None, device: torch.device) -> Generator | None:
    """A generator that draws on `device`: `generator` itself where it does (or is None), else a new
    one, seeded by a draw from it. An accelerator takes no generator of the CPU, nor the other way
    round."""
    if generator is None or _place(generator.device) == _place(device):
        return generator
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return Generator(device=device).manual_seed(int(seed))


def _place(device: torch.device) -> tuple[str, int]:
    return device.type, device.index or 0


def set_state(generator: Generator, state: Tensor, step: int) -> None:
    """Put `generator` into a `state` [n] uint8 of `get_state`. One of another kind of device, whose
    generators do not draw the same numbers, is replaced by a seed from the generator's own and
    `step`, the updates so far, with a warning."""
    state = state.cpu()
    if state.shape == generator.get_state().shape:
        generator.set_state(state)
        return
    # By the step, since the numbers of the seed alone were drawn already.
    mixed = np.random.SeedSequence([generator.initial_seed(), step]).generate_state(1)
    generator.manual_seed(int(mixed[0]))
    warnings.warn(
        f"the random numbers were saved on another kind of device than {generator.device.type}; "
        "new ones are drawn from here on, so that going on is not bit for bit",
        stacklevel=3,
    )
