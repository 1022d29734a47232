"""How far an observation is from the logged ones: a score that a policy's file can carry with it.

Distances are of observations standardised by the data's mean and standard deviation, to the nearest
of a few hundred prototypes (means of clusters of the logged observations); 1 is the distance that
99 % of held-out logged observations keep within.
"""

import torch
from torch import Generator, Tensor, nn

from mbrl.data.split import hold_out
from mbrl.errors import DataError
from mbrl.types import Dataset

PROTOTYPES = 512  # at most
ROWS_EACH = 8  # rows a prototype stands for, at least: none of them is a row of the log
SAMPLE = 20_000  # rows looked at
PASSES = 10  # of Lloyd's algorithm
QUANTILE = 0.99  # of the held-out distances: the edge
HELD_OUT = 0.2  # share of the episodes that set the edge
STILL = 1e-3  # scale of a column that never varied, over its size


class OutOfData(nn.Module):
    """Scores [B] of raw observations [B, S], float32: 0 at a prototype, 1 at the data's edge,
    infinite where an entry is no finite number."""

    mean: Tensor
    scale: Tensor
    prototypes: Tensor
    edge: Tensor

    def __init__(self, mean: Tensor, scale: Tensor, prototypes: Tensor, edge: Tensor) -> None:
        super().__init__()
        parts = {"mean": mean, "scale": scale, "prototypes": prototypes, "edge": edge}
        for name, value in parts.items():
            self.register_buffer(name, value.detach().cpu().double())

    def forward(self, obs: Tensor) -> Tensor:
        # In double precision the short form of a squared distance keeps its digits.
        x = (obs.double() - self.mean) / self.scale
        across = x @ self.prototypes.T
        sizes = x.square().sum(1, keepdim=True), self.prototypes.square().sum(1)
        nearest = (sizes[0] + sizes[1] - 2 * across).amin(1).clamp_min(0.0).sqrt()
        score = (nearest / self.edge).float()
        return torch.where(torch.isfinite(obs).all(1), score, torch.inf)


def fit_out_of_data(dataset: Dataset, seed: int = 0) -> OutOfData:
    """The score of `dataset`: prototypes from four fifths of its episodes, the edge from the rest
    (of a single episode: from its rows by turns). Raises `DataError` for fewer than 10 rows."""
    if len(dataset) < 10:
        raise DataError(
            f"{dataset.provenance.card} has {len(dataset)} rows; the out-of-data score needs 10"
        )
    generator = Generator().manual_seed(seed)
    parts = [_sample(obs, generator) for obs in _parts(dataset, seed)]
    obs = dataset.transitions.obs.cpu().double()
    mean, std = obs.mean(0), obs.std(0, correction=0)
    size = mean.abs()
    still = STILL * torch.where(size > 0, size, 1.0)  # of what never changes
    scale = torch.where(std <= 1e-6 * size, still, std)
    rows = (parts[0] - mean) / scale
    count = min(PROTOTYPES, max(1, len(rows) // ROWS_EACH))
    prototypes = cluster_means(rows, count, generator)
    score = OutOfData(mean, scale, prototypes, torch.ones(()))
    edge = torch.quantile(score(parts[1]).double(), QUANTILE).clamp_min(1e-6)
    return OutOfData(mean, scale, prototypes, edge)


def _parts(dataset: Dataset, seed: int) -> tuple[Tensor, Tensor]:
    """Observations [N, S] to learn prototypes from, and others that set the edge."""
    if round(HELD_OUT * len(dataset.transitions.episodes())) > 0:
        first, second = hold_out(dataset, HELD_OUT, seed)
        parts = first.transitions.obs, second.transitions.obs
    else:
        held = torch.arange(len(dataset)) % 5 == 4
        obs = dataset.transitions.obs
        parts = obs[~held], obs[held]
    return parts[0].cpu().double(), parts[1].cpu().double()


def _sample(obs: Tensor, generator: Generator) -> Tensor:
    return obs[torch.randperm(len(obs), generator=generator)[:SAMPLE]]


def cluster_means(rows: Tensor, count: int, generator: Generator) -> Tensor:
    """Means [K, S] of `count` clusters of `rows` [N, S] by Lloyd's algorithm, begun at rows drawn
    with probability proportional to the squared distance to those before ("k-means++: The
    Advantages of Careful Seeding", Arthur and Vassilvitskii 2007). A cluster that empties keeps
    its mean."""
    means = rows[torch.randint(len(rows), (1,), generator=generator)]
    apart = (rows - means).square().sum(1)
    while len(means) < count and float(apart.max()) > 0:
        new = rows[torch.multinomial(apart, 1, generator=generator)]
        means = torch.cat([means, new])
        apart = torch.minimum(apart, (rows - new).square().sum(1))
    for _ in range(PASSES):
        nearest = torch.cdist(rows, means).argmin(1)
        sums = torch.zeros_like(means).index_add_(0, nearest, rows)
        sizes = nearest.bincount(minlength=len(means))[:, None]
        means = torch.where(sizes > 0, sums / sizes.clamp_min(1), means)
    return means
