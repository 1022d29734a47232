"""`TrajectoryDiffusion`: a world model that generates whole windows of experience at once, as
policy-guided diffusion (arXiv 2404.06356) does, with EDM's preconditioning (arXiv 2206.00364)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mbrl.config import Count, Finite, Fraction, NonNegative, Positive, Settings, Several, Share
from mbrl.errors import ConfigError, unknown_name
from mbrl.generators import set_state
from mbrl.native.adam import Adam
from mbrl.networks import polyak_update
from mbrl.precision import takes_bfloat16
from mbrl.types import Spec, Trajectories, Transitions
from world_models.denoisers import WIDE, SamplingUNet, TemporalUNet, WindowTransformer
from world_models.guidance import PolicyGuidance
from world_models.samplers import SAMPLERS, Denoiser, Sampler, edm_levels
from world_models.windows import Tokens, window_rows

Network = Literal["unet", "transformer"]
Progress = Callable[[dict[str, Tensor]], None]
HELD = 512  # held-out windows that the holdout loss looks at
AT_ONCE = 256  # windows that are sampled together


@dataclass(frozen=True)
class DiffusionConfig(Settings):
    """Settings of the generator. The defaults are those of policy-guided diffusion's code, with a
    network for small tasks (the paper: width 1024) and fewer updates."""

    length: Several = 32  # steps of a window
    stride: Count = 8  # rows from one window to the next
    network: Network = "unet"  # the denoiser
    width: Count = 64  # features; the U-Net doubles them at each level
    levels: Count = 3  # of the U-Net, or the transformer's blocks
    holdout_fraction: Share = 0.05  # share of the episodes for the holdout loss
    action_bound: Fraction = 0.999  # actions are cut here before atanh
    noise_mean: Finite = -1.2  # of log sigma in training
    noise_std: NonNegative = 1.2  # and its deviation
    updates: Count = 10_000  # gradient steps of the fit
    batch_size: Count = 32  # windows an update
    learning_rate: Positive = 2e-3  # Adam, at its highest
    warmup: Share = 0.1  # share of the updates in which it rises from a tenth
    ema: Share = 0.995  # of the weights that sample
    ema_every: Count = 10  # updates from one to the next of their averages
    sampler: str = "churn"  # of `world_models.samplers.SAMPLERS`
    steps: Count = 256  # noise levels of a sample
    sigma_max: Positive = 80.0  # first of them
    sigma_min: Positive = 0.002  # last before 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampler not in SAMPLERS:
            raise unknown_name("sampler", self.sampler, SAMPLERS)
        edm_levels(self.steps, sigma_max=self.sigma_max, sigma_min=self.sigma_min)

    @property
    def sigmas(self) -> list[float]:
        return edm_levels(self.steps, sigma_max=self.sigma_max, sigma_min=self.sigma_min)


def precondition(network: Callable[..., Tensor], x: Tensor, sigma: Tensor) -> Tensor:
    """D(x; sigma) = c_skip x + c_out F(c_in x; ln(sigma) / 4) for data of deviation 1 (EDM,
    table 1), x [B, ...], sigma [B]."""
    s = sigma.view(-1, *[1] * (x.ndim - 1))
    norm = (s.square() + 1.0).sqrt()
    out = network(x / norm, sigma.log() / 4.0)
    return x / norm.square() + s / norm * out


def denoising_loss(
    network: Callable[..., Tensor], x: Tensor, sigma: Tensor, noise: Tensor
) -> Tensor:
    """Mean of (sigma^2 + 1) / sigma^2 (D(x + sigma n; sigma) - x)^2 over all entries (EDM,
    eq. 8); x, noise [B, ...], sigma [B]."""
    s = sigma.view(-1, *[1] * (x.ndim - 1))
    error = precondition(network, x + s * noise, sigma) - x
    return (error.square() * (1.0 + 1.0 / s.square())).mean()


class TrajectoryDiffusion:
    """A generator of windows: `fit(transitions)`, then `sample(count, generator)`.

    Differences from the authors' code: windows end where the task ends, anywhere in the window, and
    nothing after that counts; a task that ends nowhere in the data ends in no window; the budget
    is a number of updates rather than of epochs; the averaged weights reach back over at most about
    a tenth of the updates so far, so that a short fit is not held back by its first weights.
    """

    def __init__(
        self,
        spec: Spec,
        config: DiffusionConfig | None = None,
        *,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        self.spec, self.config, self.seed = spec, config or DiffusionConfig(), seed
        self._device = torch.device(device)
        self.tokens = Tokens(spec, self.config.action_bound).to(self._device)
        initial = torch.Generator().manual_seed(seed + 41)
        self.network = self._build(initial)
        self.average = self._build(initial).requires_grad_(False)  # the weights that sample
        self.average.load_state_dict(self.network.state_dict())
        self.optimiser = Adam(self.network.parameters(), lr=self.config.learning_rate, fused=True)
        self.generator = torch.Generator(self._device).manual_seed(seed + 43)
        self.updates = 0  # of the fit so far
        self._rounded: tuple[int, nn.Module] | None = None  # the averaged weights in bfloat16

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def fitted(self) -> bool:
        return self.updates >= self.config.updates

    def described_in(self, config: Any) -> Any:
        """The settings `config` of an algorithm with this model's own in them."""
        return replace(config, model=self.config)

    def _build(self, generator: torch.Generator) -> nn.Module:
        c, size = self.config, self.tokens.size
        network: nn.Module
        if c.network == "unet":
            network = TemporalUNet(size, c.width, c.levels, generator)
        else:
            network = WindowTransformer(size, c.length, c.width, c.levels, generator)
        return network.to(self._device)

    # The fit.

    def fit(self, data: Transitions, on_progress: Progress | None = None) -> None:
        """Fit on the windows of `data`, a random share of the episodes held out; continues an
        unfinished fit.

        `on_progress` is called after each pass over the windows with `model/epoch`,
        `model/train_loss` and, where episodes are held out, `model/holdout_loss`. Raises
        `DataError` where no episode has a window's length.
        """
        data = data.to(self._device)
        train, held = self.split(data)
        raw = self.tokens.raw(data)
        if self.updates == 0:
            self.tokens.fit(raw[train].flatten(0, 1))
        rows = self.tokens.normaliser(raw)
        epoch = max(1, len(train) // self.config.batch_size)
        total, count = torch.zeros((), device=self._device), 0
        while not self.fitted:
            total += self.update(self.batch(rows, train))
            count += 1
            if self.updates % epoch == 0 or self.fitted:
                metrics = {
                    "model/epoch": torch.tensor(float(math.ceil(self.updates / epoch))),
                    "model/train_loss": total / count,
                }
                if len(held):
                    metrics["model/holdout_loss"] = self.holdout_loss(rows, held)
                if on_progress is not None:
                    on_progress(metrics)
                total, count = torch.zeros_like(total), 0

    def split(self, data: Transitions) -> tuple[Tensor, Tensor]:
        """Rows [N, L] of the training windows and of the held-out ones, by whole episodes."""
        c = self.config
        index = window_rows(data, c.length, c.stride).to(self._device)
        ends = torch.tensor([end for _, end in data.episodes()], device=self._device)
        episode = torch.searchsorted(ends, index[:, 0].contiguous(), right=True)
        order = torch.randperm(len(ends), generator=torch.Generator().manual_seed(self.seed + 47))
        held = order[: int(c.holdout_fraction * len(ends))].to(self._device)
        out = torch.isin(episode, held)
        if bool(out.all()):
            out = torch.zeros_like(out)  # only held-out episodes are long enough
        return index[~out], index[out]

    def batch(self, rows: Tensor, index: Tensor) -> Tensor:
        """Windows [B, L, F] drawn uniformly from those of `index` [N, L]."""
        c = self.config
        draw = torch.randint(
            len(index), (c.batch_size,), generator=self.generator, device=self._device
        )
        return rows[index[draw]]

    def update(self, windows: Tensor) -> Tensor:
        """One gradient step; its loss."""
        c = self.config
        sigma, noise = self._noise(windows, self.generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.in_bfloat16):
            loss = denoising_loss(self.network, windows, sigma, noise)
        parameters = list(self.network.parameters())
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.grad = gradient
        for group in self.optimiser.param_groups:
            group["lr"] = c.learning_rate * rate(self.updates, c.updates, c.warmup)
        self.optimiser.step()
        self.updates += 1
        if self.updates % c.ema_every == 0:
            averaged = self.updates // c.ema_every
            polyak_update(self.average, self.network, max(1.0 - c.ema, min(1.0, 10.0 / averaged)))
        return loss.detach()

    def _noise(self, windows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        c = self.config
        shape = (len(windows),)
        draw = torch.randn(shape, generator=generator, device=self._device)
        noise = torch.randn(windows.shape, generator=generator, device=self._device)
        return (c.noise_mean + c.noise_std * draw).exp(), noise

    @torch.no_grad()
    def holdout_loss(self, rows: Tensor, index: Tensor) -> Tensor:
        """The loss of the averaged weights on held-out windows, with the same noise each time."""
        generator = torch.Generator(self._device).manual_seed(self.seed + 53)
        some = torch.randperm(len(index), generator=generator, device=self._device)[:HELD]
        windows = rows[index[some]]
        return denoising_loss(self.average, windows, *self._noise(windows, generator))

    # Samples.

    def denoise(self, x: Tensor, sigma: Tensor) -> Tensor:
        """D(x; sigma) [B, L, F] of the averaged weights, x standardised, sigma [B]; without
        gradients in products of bfloat16 where `mbrl.precision` allows them and they are faster."""
        network = self.average
        rounds = self.in_bfloat16 and not torch.is_grad_enabled()
        if rounds and not network.is_compiled(x):  # type: ignore[operator]
            network = self.sampling_network()
        return precondition(network, x, sigma)

    @property
    def in_bfloat16(self) -> bool:
        """Whether the network is wide enough to gain by bfloat16, and may be rounded to it."""
        wide = isinstance(self.average, TemporalUNet) and self.config.width >= WIDE
        return wide and self._device.type == "cpu" and takes_bfloat16()

    def sampling_network(self) -> nn.Module:
        """The averaged weights in bfloat16, made anew when they have changed."""
        assert isinstance(self.average, TemporalUNet)
        version = sum(p._version for p in self.average.parameters())
        if self._rounded is None or self._rounded[0] != version:
            self._rounded = (version, SamplingUNet(self.average))
        return self._rounded[1]

    @torch.no_grad()
    def windows(
        self,
        count: int,
        generator: torch.Generator,
        *,
        guidance: PolicyGuidance | None = None,
        sampler: Sampler | None = None,
        sigmas: list[float] | None = None,
        length: int | None = None,
        denoise: Denoiser | None = None,
    ) -> Tensor:
        """`count` standardised windows [count, L, F]. `denoise` takes the place of the fitted
        network: a student of it, a fine-tuned copy, a guided or a compiled one. Raises
        `ConfigError` before the fit is finished, and for a `length` that is not the one fitted."""
        c = self.config
        if not self.fitted:
            raise ConfigError(
                f"the trajectory diffusion has {self.updates} of {c.updates} updates; call "
                "fit(transitions) first"
            )
        if length is not None and length != c.length:
            raise ConfigError(
                f"windows of {length} steps are asked for, the diffusion was fitted on {c.length}; "
                f"fit one with length={length}"
            )
        sampler = sampler or SAMPLERS[c.sampler]()
        levels = c.sigmas if sigmas is None else sigmas
        denoise, before = denoise or self.denoise, None
        if guidance is not None:
            denoise, before = guidance.attach(self.tokens, denoise)
        parts = []
        for begin in range(0, count, AT_ONCE):
            shape = (min(AT_ONCE, count - begin), c.length, self.tokens.size)
            x = torch.randn(shape, generator=generator, device=self._device)
            parts.append(sampler(denoise, levels[0] * x, levels, generator, before=before))
        return torch.cat(parts)

    def sample(
        self,
        count: int,
        generator: torch.Generator,
        *,
        guidance: PolicyGuidance | None = None,
        sampler: Sampler | None = None,
        sigmas: list[float] | None = None,
        length: int | None = None,
        denoise: Denoiser | None = None,
    ) -> Trajectories:
        """`count` windows as `Trajectories` [count, L, ...] in the task's units; a window of L
        tokens has L - 1 steps, or L where its last ends the task. Raises as `windows` does."""
        windows = self.windows(
            count,
            generator,
            guidance=guidance,
            sampler=sampler,
            sigmas=sigmas,
            length=length,
            denoise=denoise,
        )
        return self.tokens.trajectories(windows)

    # State.

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "tokens": self.tokens.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "updates": self.updates,
            "length": self.config.length,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["length"] != self.config.length:
            raise ConfigError(
                f"the saved diffusion makes windows of {state['length']} steps, this one has "
                f"length {self.config.length}; give it length={state['length']}"
            )
        for name in ("network", "average", "tokens", "optimiser"):
            getattr(self, name).load_state_dict(state[name])
        self.updates = state["updates"]
        set_state(self.generator, state["generator"], self.updates)


def rate(update: int, updates: int, warmup: float) -> float:
    """The learning rate's factor: from 0.1 to 1 in a line over the first share `warmup`, then down
    to 0 as a cosine."""
    rising = warmup * updates
    if update < rising:
        return 0.1 + 0.9 * update / rising
    return 0.5 * (1.0 + math.cos(math.pi * (update - rising) / max(1.0, updates - rising)))
