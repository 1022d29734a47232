"""The training of a generator of windows by reward, in rounds: samples, advantages, updates."""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from algorithms.diffusion_rl import preferences
from algorithms.diffusion_rl.branches import (
    Width,
    always_learned,
    depths_left_out,
    grow,
    kept_in_width,
    node_advantages,
)
from algorithms.diffusion_rl.chains import (
    Fixed,
    Moves,
    density,
    distribution,
    divergence,
    joined,
    like,
    mean_of,
    require_fixed,
    sample,
)
from algorithms.diffusion_rl.quantised import extremes, quantised
from algorithms.diffusion_rl.singular import anchor, finished, group_scores, spread_from
from algorithms.language.adapters import advantages, loss
from mbrl.config import (
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    Probability,
    Range,
    Rate,
    Settings,
    Several,
    require_same,
)
from mbrl.errors import ConfigError
from mbrl.generators import set_state
from mbrl.native.adam import Adam
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.axes.gate import Clip
from mbrl.policy_gradient.axes.ratio import GeometricRatio
from mbrl.training import Metrics
from world_models.samplers.base import Denoiser, edm_levels
from world_models.trajectory_diffusion import precondition

Method = Literal["chains", "branches", "singular", "explore", "preferences", "weighted"]
Reward = Callable[[Tensor], Tensor]  # samples [B, ...] to [B]
Prompts = Callable[[int, torch.Generator], Fixed | None]  # given entries of so many samples


def checked(reward: Reward) -> Reward:
    """`reward`, whose answers to samples [B, ...] become numbers [B]; `ConfigError` for answers of
    another shape, and for those that are not finite."""

    def finite(x: Tensor) -> Tensor:
        value = torch.as_tensor(reward(x), device=x.device)
        if value.shape != (len(x),):
            raise ConfigError(
                f"the reward of {len(x)} samples has shape {tuple(value.shape)}; give one number "
                "for each, [B]"
            )
        if not bool(value.isfinite().all()):
            row = int((~value.isfinite()).nonzero()[0])
            raise ConfigError(
                f"the reward of sample {row} is {float(value[row])}; it must be finite"
            )
        return value if value.is_floating_point() else value.to(x.dtype)

    return finite


@dataclass(frozen=True)
class FinetuningConfig(Settings):
    """Settings of a fine-tuning. A round has `prompts` groups; the samples of a group have the same
    fixed entries and the same first noise."""

    # chains: DDPO, and DPOK with `kl`; branches: BranchGRPO; singular: G2RPO; explore: Sol-RL;
    # preferences: GDRO; weighted: the fit to stored samples weighted by reward
    method: Method = "chains"
    prompts: Count = 8
    group: Count = 8  # samples of a prompt; of branches: leaves, by the number of `splits`
    steps: Count = 10  # of denoising
    sigma_max: Positive = 80.0  # first noise level
    sigma_min: Positive = 0.02  # last before 0
    eta: Probability = 0.7  # share of fresh noise in every step
    # range of ratios of mean densities, which are geometric means over a sample's entries
    clip: Annotated[float, Range(float, "(0, 0.05]")] = 1e-3
    clamp: Positive = 5.0  # of advantages
    kl: NonNegative = 0.0  # weight of the divergence of steps from the first network's
    minibatches: Count = 4  # updates a round
    learning_rate: Positive = 1e-4  # Adam
    splits: tuple[CountOrZero, ...] = (0, 3, 6)  # of branches: steps before which nodes become two
    # Of branches, what is sampled and not learned from: steps into these depths (from 1), a step
    # nearer to the noise every `left_out_every` rounds (0: never) down to the last split; and after
    # the last split all but the share `width_ratio` of the steps (`branches.kept_in_width`).
    left_out: tuple[Count, ...] = ()
    left_out_every: CountOrZero = 0
    width: Width = "all"
    width_ratio: Rate = 0.5
    trained: Count = 4  # of singular: steps from the first on, one after the other
    granularities: tuple[Count, ...] = (1, 2)  # of singular: every how many levels to finish by
    candidates: Count = 32  # of explore: samples of a prompt in low precision
    bits: Several = 4  # of its weights, one of them the sign
    stored: Count = 64  # of preferences and weighted: prompts with samples of the first network
    beta: Positive = 100.0  # of preferences: from errors to log-ratios
    tau: Positive = 0.5  # of preferences and weighted: deviations of reward in a factor e

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method == "branches":
            self._check_branches()
        if self.method == "singular" and self.trained >= self.steps:
            raise ConfigError(
                f"trained is {self.trained} of {self.steps} steps; the last draws nothing, so at "
                f"most {self.steps - 1}"
            )
        if self.method == "singular" and not self.granularities:
            raise ConfigError("granularities are empty; give one or more numbers of levels")
        if self.kl > 0 and self.method in ("preferences", "weighted"):
            raise ConfigError(
                f"kl is {self.kl} and method {self.method}, which learns from stored samples and "
                "has no steps to compare; set kl to 0"
            )
        if self.eta == 0.0 and self.method not in ("preferences", "weighted"):
            raise ConfigError(
                f"eta is 0 and method {self.method}, which learns from the noise of steps; give an "
                "eta above 0"
            )
        if self.group < 2 or (self.method == "explore" and self.candidates < self.group):
            raise ConfigError(
                f"group is {self.group} and candidates {self.candidates}; a group has 2 samples or "
                "more, and explore chooses them among as many candidates or more"
            )

    def _check_branches(self) -> None:
        last = self.steps - 1
        if any(step >= last for step in self.splits):
            raise ConfigError(
                f"splits are {self.splits}, of {self.steps} steps; each is below {last}, as the "
                "last step draws nothing"
            )
        if not 0 < len(self.splits) == len(set(self.splits)):
            raise ConfigError(f"splits are {self.splits}; give one or more, each step once")
        first = min(self.splits)
        if all(depth in self.left_out for depth in range(first + 1, self.steps)):
            raise ConfigError(
                f"left_out is {self.left_out}, all depths that have an advantage ({first + 1} to "
                f"{last}); leave one"
            )
        if max(self.left_out, default=0) >= self.steps:
            raise ConfigError(
                f"left_out is {self.left_out}; the last of {self.steps} steps draws nothing, so "
                f"depths are 1 to {last}"
            )
        tree = (self.splits, self.steps, self.prompts)
        width, pruned = (self.width, self.width_ratio), (self.left_out, self.left_out_every)
        if self.left_out and not always_learned(*tree, *width, *pruned):
            raise ConfigError(
                f"left_out is {self.left_out}, which in some round leaves nothing of what width "
                f"{self.width!r} with width_ratio {self.width_ratio} keeps; leave out fewer "
                "depths, or give a larger width_ratio"
            )

    @property
    def recipe(self) -> Recipe:
        """Advantages and the clipped loss of a step, in the words of every policy gradient."""
        title = "Training Diffusion Models with Reinforcement Learning"
        gate = Clip(self.clip, self.clip)
        return Recipe("denoising", title, "2305.13301", ratio=GeometricRatio(), gate=gate)


class DiffusionFinetuning:
    """Fine-tunes `network`, a denoiser of standardised samples with EDM's preconditioning, by
    `reward`. `shape` [...] is that of one sample; `prompts` gives the fixed entries of some.

    Formula: the mean over steps of -min(A rho, A clip(rho, 1 - clip, 1 + clip)), rho the quotient
    of mean densities of a denoising step, plus `kl` times the divergence from the first network's
    step ("Training Diffusion Models with Reinforcement Learning", arXiv 2305.13301; "DPOK:
    Reinforcement Learning for Fine-tuning Text-to-Image Diffusion Models", arXiv 2305.16381).

    `update` is a round; `evaluations` counts the samples that went through the network, once
    sampled and once learned from.
    """

    def __init__(
        self,
        network: nn.Module,
        shape: tuple[int, ...],
        reward: Reward,
        prompts: Prompts | None = None,
        config: FinetuningConfig | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.config = config or FinetuningConfig()
        self.first = copy.deepcopy(network).requires_grad_(False)
        self.network = copy.deepcopy(network).requires_grad_(True)
        self.shape, self.reward, self.prompts = shape, checked(reward), prompts
        self.device = next(self.network.parameters()).device
        self.optimiser = Adam(self.network.parameters(), lr=self.config.learning_rate)
        self.generator = torch.Generator(self.device).manual_seed(seed + 83)
        c = self.config
        self.sigmas = edm_levels(c.steps, sigma_max=c.sigma_max, sigma_min=c.sigma_min)
        self.sampled = {
            "chains": self.by_chains,
            "branches": self.by_branches,
            "singular": self.by_singular,
            "explore": self.by_explore,
        }
        self.rounds = self.evaluations = 0
        # Samples [P, G, ...], rewards [P, G], and which entries [...] are free (1) or given (0).
        self.stored: tuple[Tensor, Tensor, Tensor] | None = None

    # Sampling.

    def denoiser(self, network: nn.Module) -> Denoiser:
        def denoise(x: Tensor, sigma: Tensor) -> Tensor:
            self.evaluations += len(x)
            return precondition(network, x, sigma)

        return denoise

    def draw(self, x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=self.generator, device=self.device, dtype=x.dtype)

    def begin(self, count: int, group: int) -> tuple[Tensor, Fixed | None]:
        """The first noise [count group, ...] and the fixed entries of so many prompts."""
        fixed = None if self.prompts is None else self.prompts(count, self.generator)
        if fixed is not None:
            require_fixed(fixed, count, self.shape)
        noise = torch.randn((count, *self.shape), generator=self.generator, device=self.device)
        index = torch.arange(count, device=self.device).repeat_interleave(group)
        return noise[index], fixed and fixed.rows(index)

    def fresh(self, count: int) -> Tensor:
        """The draws [T, count, ...] of all steps."""
        return self.draw(torch.empty(self.config.steps, count, *self.shape, device=self.device))

    @torch.no_grad()
    def samples(self, count: int, generator: torch.Generator, fixed: Fixed | None = None) -> Tensor:
        """`count` samples of the network as it is, without fresh noise in the steps."""
        if fixed is not None:
            require_fixed(fixed, count, self.shape)
        noise = torch.randn((count, *self.shape), generator=generator, device=self.device)
        nothing = torch.zeros_like(noise).expand(self.config.steps, *noise.shape)
        denoise = self.denoiser(self.network)
        return sample(denoise, noise, nothing, self.sigmas, 0.0, fixed)[0]

    # A round.

    def update(self) -> Metrics:
        """A round: new samples (or stored ones), and `minibatches` updates on them."""
        c = self.config
        if c.method in ("preferences", "weighted"):
            metrics = self.fit_to_stored()
        else:
            with torch.no_grad():
                moves, reward = self.sampled[c.method]()
            moves = moves._replace(advantage=moves.advantage.clamp(-c.clamp, c.clamp))
            metrics = self.learn(moves) | {"reward/mean": reward.mean()}
            metrics["advantage/largest"] = moves.advantage.abs().max()
        self.rounds += 1
        return metrics

    def by_chains(self) -> tuple[Moves, Tensor]:
        c = self.config
        noise, fixed = self.begin(c.prompts, c.group)
        denoise = self.denoiser(self.network)
        x, steps = sample(denoise, noise, self.fresh(len(noise)), self.sigmas, c.eta, fixed)
        reward = self.reward(x)
        return self.scored(steps, reward, c.group), reward

    def scored(self, steps: list[Moves], reward: Tensor, group: int) -> Moves:
        """The moves of all steps, each with the advantage of its sample in its group."""
        ones = torch.ones(len(reward), 1, device=reward.device)
        prompt = torch.arange(len(reward)) // group
        advantage = advantages(self.config.recipe, reward, ones, prompt)[0][:, 0]
        return joined([step._replace(advantage=advantage) for step in steps])

    def by_branches(self) -> tuple[Moves, Tensor]:
        c = self.config
        noise, fixed = self.begin(c.prompts, 1)
        denoise = self.denoiser(self.network)
        x, depths = grow(denoise, noise, self.sigmas, c.eta, c.splits, self.draw, fixed)
        reward = self.reward(x)
        widths = [len(d.x) // c.prompts for d in depths]
        each = node_advantages(reward.view(c.prompts, -1), widths)
        kept = kept_in_width(each, c.splits, c.width, c.width_ratio)
        dropped = depths_left_out(c.left_out, c.splits, self.rounds, c.left_out_every)
        moves = [
            made._replace(advantage=own.flatten()).select(mask.flatten())
            for depth, (made, own, mask) in enumerate(zip(depths, each, kept, strict=True), 1)
            if own.shape[1] > 1 and depth not in dropped
        ]
        return joined(moves), reward

    def by_singular(self) -> tuple[Moves, Tensor]:
        c = self.config
        step = self.rounds % c.trained
        noise, fixed = self.begin(c.prompts, 1)
        denoise = self.denoiser(self.network)
        state = anchor(denoise, noise, self.sigmas[: step + 1] if step else self.sigmas[:2], fixed)
        index = torch.arange(c.prompts, device=self.device).repeat_interleave(c.group)
        own, levels = fixed and fixed.rows(index), (self.sigmas[step], self.sigmas[step + 1])
        x, moves = spread_from(denoise, state[step][index], *levels, c.eta, self.draw, own)
        total, rewards = torch.zeros_like(moves.log_prob), []
        for granularity in c.granularities:
            end = finished(denoise, x, self.sigmas[step + 1 :], granularity, own)
            rewards.append(self.reward(end))
            total += group_scores(rewards[-1].view(c.prompts, -1)).flatten()
        return moves._replace(advantage=total), torch.stack(rewards).mean(0)

    def by_explore(self) -> tuple[Moves, Tensor]:
        """Candidates in low precision choose whose noise is worth full precision; their rewards
        are not trained on."""
        c = self.config
        noise, fixed = self.begin(c.prompts, c.candidates)
        fresh = self.fresh(len(noise))
        cheap = self.denoiser(quantised(self.network, c.bits))
        rough = self.reward(sample(cheap, noise, fresh, self.sigmas, c.eta, fixed)[0])
        best = (c.group + 1) // 2
        places = extremes(rough.view(c.prompts, -1), best, c.group - best)
        begin = torch.arange(c.prompts, device=self.device)[:, None] * c.candidates
        kept = (begin + places).flatten()
        chosen = fixed and fixed.rows(kept)
        denoise = self.denoiser(self.network)
        x, steps = sample(denoise, noise[kept], fresh[:, kept], self.sigmas, c.eta, chosen)
        reward = self.reward(x)
        return self.scored(steps, reward, c.group), reward

    # Updates.

    def learn(self, moves: Moves) -> Metrics:
        c = self.config
        metrics: Metrics = {}
        order = torch.randperm(len(moves.x), generator=self.generator, device=self.device)
        for rows in order.tensor_split(min(c.minibatches, len(order))):
            value, metrics = self.loss(moves.select(rows))
            self.descend(value)
        return metrics

    def loss(self, moves: Moves) -> tuple[Tensor, Metrics]:
        """The loss, with gradients in the network."""
        c = self.config
        mean, spread = distribution(self.denoiser(self.network), moves, c.eta)
        now = density(moves.reached, mean, spread, moves.free)[:, None]
        ones, old = torch.ones_like(now), moves.log_prob[:, None]
        value, metrics = loss(c.recipe, now, moves.advantage[:, None], ones, old=old)
        if c.kl > 0:
            with torch.no_grad():
                other, _ = distribution(self.denoiser(self.first), moves, c.eta)
            apart = divergence(mean, other, spread, moves.free).mean()
            value, metrics = value + c.kl * apart, metrics | {"policy/kl": apart.detach()}
        return value, metrics

    def descend(self, value: Tensor) -> None:
        self.optimiser.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimiser.step()

    def fit_to_stored(self) -> Metrics:
        """Updates on samples of the first network, whose rewards were asked for once."""
        c = self.config
        if self.stored is None:
            self.stored = self.store()
        samples, reward, free = self.stored
        value = torch.zeros(())
        for _ in range(c.minibatches):
            rows = torch.randint(
                len(samples), (c.prompts,), generator=self.generator, device=self.device
            )
            clean = samples[rows].flatten(0, 1)
            level = torch.randn(c.prompts, generator=self.generator, device=self.device)
            sigma = (-1.2 + 1.2 * level).exp().repeat_interleave(c.group)  # EDM's levels of a fit
            noise = self.draw(clean[:: c.group]).repeat_interleave(c.group, 0)
            own = self.errors(self.network, clean, noise * free, sigma, free)
            if c.method == "weighted":
                value = preferences.weighted_error(own, reward[rows], c.tau)
            else:
                with torch.no_grad():
                    reference = self.errors(self.first, clean, noise * free, sigma, free)
                value = preferences.group_loss(own, reference, reward[rows], c.beta, c.tau)
            self.descend(value)
        return {"policy/loss": value.detach(), "reward/mean": reward.mean()}

    def errors(
        self, network: nn.Module, clean: Tensor, noise: Tensor, sigma: Tensor, free: Tensor
    ) -> Tensor:
        """[P, G]: EDM's weighted denoising errors of samples, the mean over their free entries."""
        denoised = self.denoiser(network)(clean + like(sigma, clean) * noise, sigma)
        each = (denoised - clean).square() * like(1.0 + 1.0 / sigma.square(), clean)
        return mean_of(each, free).view(-1, self.config.group)

    @torch.no_grad()
    def store(self) -> tuple[Tensor, Tensor, Tensor]:
        c = self.config
        noise, fixed = self.begin(c.stored, c.group)
        noise = self.draw(noise)  # each its own: what is compared is samples, not steps
        fresh, denoise = self.fresh(len(noise)), self.denoiser(self.first)
        x = sample(denoise, noise, fresh, self.sigmas, c.eta, fixed)[0]
        free = torch.ones_like(x[0]) if fixed is None else (~fixed.mask).to(x)
        reward = self.reward(x).view(c.stored, c.group)
        return x.unflatten(0, (c.stored, c.group)), reward, free

    # State.

    def state_dict(self) -> dict[str, Any]:
        return {
            "config": dataclasses.asdict(self.config),
            "network": self.network.state_dict(),
            "first": self.first.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "stored": self.stored,
            "rounds": self.rounds,
            "evaluations": self.evaluations,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`. Raises `ConfigError` for one of other settings."""
        require_same(self.config, state["config"])
        self.network.load_state_dict(state["network"])
        self.first.load_state_dict(state["first"])
        self.optimiser.load_state_dict(state["optimiser"])
        set_state(self.generator, state["generator"], state["rounds"])
        self.stored = state["stored"]
        self.rounds, self.evaluations = state["rounds"], state["evaluations"]
