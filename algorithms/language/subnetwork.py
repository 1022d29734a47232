"""Which weights a run moved: their share, the rank of the change, the overlap of two runs, and
training of these weights alone. "Reinforcement Learning Finetunes Small Subnetworks in Large
Language Models", arXiv 2505.11711.

The paper's weights are bfloat16, in which small updates are rounded away. With float32 and Adam
every weight that ever had a gradient has moved, so that a share means something only beside its
tolerance, or after both sides are rounded to bfloat16."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from mbrl import checkpoint
from mbrl.errors import ConfigError

Weights = Mapping[str, Tensor]


def moved(
    before: Weights, after: Weights, tolerance: float = 0.0, *, bfloat16: bool = False
) -> dict[str, Tensor]:
    """Of every weight whether it differs by more than `tolerance`, with `bfloat16` after both were
    rounded to it. Raises `ConfigError` for the weights of another model."""
    if {k: v.shape for k, v in before.items()} != {k: v.shape for k, v in after.items()}:
        raise ConfigError("the weights are of two models; compare runs of one model")
    pairs = {name: (before[name], after[name]) for name in before}
    if bfloat16:
        pairs = {name: (a.bfloat16(), b.bfloat16()) for name, (a, b) in pairs.items()}
    return {name: (b.double() - a.double()).abs() > tolerance for name, (a, b) in pairs.items()}


def share(sets: Mapping[str, Tensor]) -> float:
    """The share of all weights that is in the sets."""
    return count(sets) / max(1, sum(s.numel() for s in sets.values()))


def count(sets: Mapping[str, Tensor]) -> int:
    return sum(int(s.sum()) for s in sets.values())


def ranks(before: Weights, after: Weights) -> dict[str, float]:
    """Of every matrix the rank of its change over the most that it could be. Singular values count
    above the largest one times the larger size times the precision of the weights."""
    known = {}
    for name, a in before.items():
        change = after[name].double() - a.double()
        if change.ndim != 2:
            continue
        values = torch.linalg.svdvals(change)
        least = values.max() * max(change.shape) * torch.finfo(a.dtype).eps
        known[name] = float((values > least).sum()) / min(change.shape)
    return known


def overlap(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> tuple[float, float, float]:
    """How much of the smaller set is in the other, |A and B| / min(|A|, |B|); what that would be on
    average if each were as many weights drawn evenly from all of the model, and if they were drawn
    matrix by matrix. NaN for an empty set."""
    least = min(count(a), count(b))
    if least == 0:
        return (torch.nan,) * 3
    both = sum(int((a[name] & b[name]).sum()) for name in a)
    total = sum(s.numel() for s in a.values())
    apart = sum(float(a[n].sum()) * float(b[n].sum()) / a[n].numel() for n in a)
    return both / least, count(a) * count(b) / total / least, apart / least


class Subnetwork(nn.Module):
    """The weights that are trained, as masks: the gradients of others are set to 0."""

    def __init__(self, sets: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = list(sets)
        for i, name in enumerate(self.names):
            self.register_buffer(f"mask_{i}", sets[name].bool())

    def restrict(self, model: nn.Module) -> None:
        """Set gradients to 0 outside the masks."""
        named = dict(model.named_parameters())
        for i, name in enumerate(self.names):
            if (gradient := named[name].grad) is not None:
                gradient.mul_(self.get_buffer(f"mask_{i}").to(gradient.dtype))


def write(sets: Mapping[str, Tensor], path: str | Path) -> None:
    """Raises `CheckpointError` where the disk does not take it."""
    checkpoint.save(path, {"weights": {name: value.cpu() for name, value in sets.items()}})


def read(path: str | Path, model: nn.Module) -> Subnetwork:
    """The subnetwork that `write` wrote. Raises `ConfigError` where it is of another model or not
    there, and `CheckpointError` where it is no such file."""
    if not Path(path).exists():
        raise ConfigError(
            f"subnetwork is {path}, which is no file; `language subnetwork RUN --write` makes one"
        )
    sets = checkpoint.load(path).get("weights", {})
    shapes = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
    if {name: value.shape for name, value in sets.items()} != shapes:
        raise ConfigError(f"the subnetwork in {path} is of another model; take one of this model")
    return Subnetwork(sets)
