"""Windows from coarse to fine: a model that says a window at a few points in time, then at twice as
many given those, and so on, and its refinement on its own coarse windows. Next-scale prediction of
"Visual Autoregressive Modeling: Scalable Image Generation via Next-Scale Prediction", arXiv
2404.02905, with every scale a whole window as in FlexVAR, arXiv 2502.20313. The refinement is that
of "Rethinking Training Dynamics in Scale-wise Autoregressive Generation" (SAR), arXiv 2512.06421,
by the authors' code (GengzeZhou/SAR)."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mbrl.config import Count, NonNegative, Positive, Range, Settings, require_same
from mbrl.errors import ConfigError, DataError
from mbrl.native.adam import Adam
from world_models.denoisers import initialise


@dataclass(frozen=True)
class ScaleConfig(Settings):
    """Settings of the model and of its fit."""

    scales: tuple[Count, ...] = (4, 8, 16, 32)  # points of a window, the last all of them
    bins: Annotated[int, Range(int, "[2, inf)")] = 64  # equally wide, of every feature
    reach: Positive = 4.0  # deviations that the bins cover, to either side
    width: Count = 64  # features
    levels: Count = 3  # blocks
    heads: Count = 4
    batch_size: Count = 64  # windows an update
    learning_rate: Positive = 1e-3  # Adam

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.scales or list(self.scales) != sorted(set(self.scales)):
            raise ConfigError(
                f"scales is {self.scales}; give rising numbers of points, one or more"
            )
        if self.width % self.heads:
            raise ConfigError(f"width is {self.width}; it is a multiple of heads, {self.heads}")


@dataclass(frozen=True)
class RefinementConfig(Settings):
    """Settings of updates on the model's own coarse windows. The defaults are those of the
    authors' code."""

    weight: NonNegative = 0.01  # of what is learned on own windows beside the usual loss
    # What own windows are to lead to: what the model said given the data's (SAR), or the data.
    target: Literal["prediction", "data"] = "prediction"
    scales: Literal["last", "all"] = (
        "last"  # at which that is asked: the last, or all but the first
    )


class ScaleModel:
    """A model of windows [N, L, F] of standardised numbers. Each feature of a scale is one of
    `bins`, drawn by itself given the scales before, the model's chances of which are fitted.

    `update` and `refine` are one step of either kind; `sample` draws windows."""

    def __init__(self, features: int, config: ScaleConfig | None = None, *, seed: int = 0) -> None:
        self.config, self.features = config or ScaleConfig(), features
        self.network = ScaleTransformer(features, self.config, torch.Generator().manual_seed(seed))
        self.optimiser = Adam(self.network.parameters(), lr=self.config.learning_rate, fused=True)
        self.generator = torch.Generator().manual_seed(seed + 61)
        self.updates = 0

    # Windows and bins.

    def bins(self, windows: Tensor) -> Tensor:
        """int64 of the shape of `windows`: the bin of every number, the nearest where it lies
        beyond."""
        c = self.config
        place = (windows + c.reach) * (c.bins / (2 * c.reach))
        return place.floor().long().clamp(0, c.bins - 1)

    def centres(self, bins: Tensor) -> Tensor:
        """The numbers in the middle of bins."""
        c = self.config
        result: Tensor = (bins + 0.5) * (2 * c.reach / c.bins) - c.reach
        return result

    def scaled(self, windows: Tensor) -> list[Tensor]:
        """The bins [B, n, F] of every scale of windows [B, L, F]: means over equal stretches of
        time. Raises `ConfigError` for windows of another length, `DataError` for numbers that are
        not finite."""
        c = self.config
        if windows.shape[1] != c.scales[-1]:
            raise ConfigError(
                f"windows have {windows.shape[1]} points, and scales is {c.scales}; the last scale "
                "is the windows' length"
            )
        if not bool(windows.isfinite().all()):
            raise DataError("windows have numbers that are not finite; leave such windows out")
        return [self.bins(F.adaptive_avg_pool1d(windows.mT, n).mT) for n in c.scales]

    def before(self, scales: Sequence[Tensor]) -> Tensor:
        """What the network reads at every scale after the first, [B, n_2 + ... , F]: the bins of
        the one before, brought to as many points."""
        sizes = self.config.scales
        return torch.cat([finer(self.centres(s), n) for s, n in zip(scales, sizes[1:])], 1)  # noqa: B905

    def logits(self, scales: Sequence[Tensor]) -> Tensor:
        """At the points of all scales, each given the bins in `scales` of the one before."""
        given = self.before(scales[:-1]) if len(scales) > 1 else None
        result: Tensor = self.network(given, count=len(scales[0]))
        return result

    # Learning.

    def update(self, windows: Tensor) -> Tensor:
        """One step on windows [B, L, F], every scale given the data's scale before; its loss."""
        scales = self.scaled(windows)
        logits = self.logits(scales)
        return self.descend(error(logits, torch.cat(scales, 1)))

    def refine(self, windows: Tensor, config: RefinementConfig | None = None) -> Tensor:
        """One step of refinement on windows [B, L, F]; its loss: that of `update`, and `weight`
        times that of a second pass, in which every scale is given what the first pass drew for the
        scale before. Difference from the authors' code: the second pass sees all earlier scales
        that it is given, as sampling does; theirs sees the one before alone."""
        c = config or RefinementConfig()
        if len(self.config.scales) == 1:
            raise ConfigError(
                f"scales is {self.config.scales}, and refinement goes on from coarser windows; "
                "give two scales or more, or take update"
            )
        scales = self.scaled(windows)
        logits = self.logits(scales)
        loss = error(logits, torch.cat(scales, 1))
        drawn = self.draw(logits.detach(), self.generator)
        own = self.logits(drawn)
        wanted = torch.cat(drawn if c.target == "prediction" else scales, 1)
        first = self.config.scales[0] if c.scales == "all" else sum(self.config.scales[:-1])
        return self.descend(loss + c.weight * error(own[:, first:], wanted[:, first:]))

    def descend(self, loss: Tensor) -> Tensor:
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.updates += 1
        return loss.detach()

    def draw(self, logits: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Bins [B, n, F] of every scale drawn from logits [B, sum n, F, K]."""
        chances = logits.softmax(-1)
        flat = torch.multinomial(chances.flatten(0, -2), 1, generator=generator)
        return list(flat.view(chances.shape[:-1]).split(self.config.scales, 1))

    # Samples.

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` windows [count, L, F], scale after scale."""
        scales: list[Tensor] = []
        for done in range(len(self.config.scales)):
            given = self.before(scales) if scales else None
            logits = self.network(given, scales=done + 1, count=count)
            own = logits[:, -self.config.scales[done] :].softmax(-1)
            flat = torch.multinomial(own.flatten(0, -2), 1, generator=generator)
            scales.append(flat.view(own.shape[:-1]))
        return self.centres(scales[-1])

    @torch.no_grad()
    def errors(self, windows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Cross-entropies [scales] of the bins of windows [B, L, F]: given the data's scale before,
        and given what the model draws for it from the data's before that."""
        scales, sizes = self.scaled(windows), self.config.scales
        logits = self.logits(scales)
        own = self.logits(self.draw(logits, generator))
        both = []
        for made in (logits, own):
            parts = zip(made.split(sizes, 1), scales, strict=True)
            both.append(torch.stack([error(part, wanted) for part, wanted in parts]))
        return both[0], both[1]

    # State.

    def state_dict(self) -> dict[str, Any]:
        return {
            "config": dataclasses.asdict(self.config),
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`. Raises `ConfigError` for one of other settings."""
        require_same(self.config, state["config"])
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])
        self.updates = state["updates"]


def finer(coarse: Tensor, points: int) -> Tensor:
    """[B, points, F] of [B, n, F], by lines between the middles of stretches of time."""
    return F.interpolate(coarse.mT, size=points, mode="linear", align_corners=False).mT


def error(logits: Tensor, bins: Tensor) -> Tensor:
    """The mean cross-entropy of bins [...] under logits [..., K]."""
    return F.cross_entropy(logits.flatten(0, -2), bins.flatten())


class ScaleTransformer(nn.Module):
    """Attention over the points of all scales, each of which sees its own and earlier scales."""

    hidden: Tensor

    def __init__(self, features: int, config: ScaleConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        total = sum(config.scales)
        self.into = nn.Linear(features, config.width)
        layer = nn.TransformerEncoderLayer(
            config.width,
            config.heads,
            4 * config.width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(layer, config.levels, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(config.width)
        self.out = nn.Linear(config.width, features * config.bins)
        initialise(self, generator)
        with torch.no_grad():
            for block in self.blocks.layers:
                bound = config.width**-0.5
                nn.init.uniform_(block.self_attn.in_proj_weight, -bound, bound, generator=generator)
        self.place = nn.Parameter(0.5 * torch.randn(total, config.width, generator=generator))
        of = torch.arange(len(config.scales)).repeat_interleave(torch.tensor(config.scales))
        self.register_buffer("hidden", of[None] > of[:, None], persistent=False)

    def forward(self, given: Tensor | None, scales: int | None = None, count: int = 1) -> Tensor:
        """Logits [B, N, F, K] at the N points of all scales, or of the first `scales`. `given`
        [B, N - n_1, F] is what stands before every scale but the first, which begins from nothing;
        with None there is that scale alone, `count` times."""
        c = self.config
        sizes = c.scales[: scales or len(c.scales)]
        rows = count if given is None else len(given)
        h = self.place[: sum(sizes)].expand(rows, -1, -1)
        if given is not None:
            h = h + F.pad(self.into(given), (0, 0, sizes[0], 0))
        hidden = self.hidden[: h.shape[1], : h.shape[1]]
        logits: Tensor = self.out(self.norm(self.blocks(h, mask=hidden))).unflatten(
            -1, (-1, c.bins)
        )
        return logits
