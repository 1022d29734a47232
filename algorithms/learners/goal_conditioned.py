"""What learners of goals share: their settings, policies of a fixed deviation, values of goals as
GCIVL learns them, and the policy losses. The formulas are those of OGBench's reference code
(arXiv 2410.20092; seohongpark/ogbench at 1d41409, impls/agents/). All differ from it in two things:
targets follow the networks after their step (theirs: before it), and GELU is the exact one (theirs:
its tanh form)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor, nn

from algorithms.learners.advantage_weighted import exponential_weight, weighted_cloning
from algorithms.sources.relabelled import FUTURE, GoalDraws, RelabelledRows
from mbrl.buffer import Batch
from mbrl.config import Count, Discount, Fraction, Positive, Rate, Settings, Widths
from mbrl.goals import GoalEntries
from mbrl.networks import (
    MLP,
    EnsembleMLP,
    Normaliser,
    TanhMeanGaussianPolicy,
    adam,
    step,
    target_copy,
)
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec

BOUND = 100.0  # of the advantage weights


@dataclass(frozen=True)
class GoalConfig(Settings):
    """The settings that learners of goals share; the defaults are OGBench's."""

    policy_goals: GoalDraws = field(default_factory=lambda: FUTURE)  # the policy's
    hidden: Widths = (512, 512, 512)  # widths of all networks
    learning_rate: Positive = 3e-4  # Adam
    batch_size: Count = 1024  # rows an update
    gamma: Discount = 0.99  # discount factor
    normalise_obs: bool = False  # standardise observations with the data's statistics


@dataclass(frozen=True)
class GoalValueConfig(GoalConfig):
    """Those of learners with values of goals, too."""

    value_goals: GoalDraws = field(default_factory=GoalDraws)  # the values'
    expectile: Fraction = 0.9  # of the value regression
    layer_norm: bool = True  # in the values
    tau: Rate = 0.005  # rate of the target average


def input_normaliser(spec: Spec, config: GoalConfig) -> nn.Module:
    """What networks see of observations [..., S] with their goal: what `Normaliser` makes of them,
    or themselves. The latter has no weights, so that files of agents without it stay readable."""
    return Normaliser(spec.obs_dim) if config.normalise_obs else nn.Identity()


class GoalPolicy(TanhMeanGaussianPolicy):
    """N(tanh(f(s, g)), 1): cloning is by squared error, and the greedy action is the mean. `net`
    takes the place of the plain network f."""

    net: nn.Module  # type: ignore[assignment]

    def __init__(
        self,
        spec: Spec,
        hidden: Sequence[int],
        *,
        generator: Generator,
        net: nn.Module | None = None,
    ) -> None:
        super().__init__(spec, hidden, generator=generator)
        self.log_std.requires_grad_(False)
        if net is not None:
            self.net = net


def learned_parameters(*modules: nn.Module) -> list[nn.Parameter]:
    """Those that take a gradient."""
    return [p for m in modules for p in m.parameters() if p.requires_grad]


def optimisers_of(
    modules: Mapping[str, nn.Module], learning_rate: float
) -> dict[str, torch.optim.Optimizer]:
    """Adam for what each module learns, by its name."""
    return {name: adam(learned_parameters(m), learning_rate) for name, m in modules.items()}


def goal_rows(
    spec: Spec,
    config: GoalConfig,
    device: torch.device,
    values: GoalDraws | None = None,
    steps: int = 0,
    last_states: bool = True,
) -> RelabelledRows:
    """The rows of a learner with these settings: goals of its policy, and of its `values`. Those
    that follow from next values take no `last_states` for goals."""
    return RelabelledRows(
        spec,
        config.gamma,
        config.batch_size,
        device,
        values=values,
        policy=config.policy_goals,
        steps=steps,
        last_states=last_states,
    )


def descend_together(
    optimisers: Mapping[str, torch.optim.Optimizer], losses: Mapping[str, Tensor]
) -> None:
    """One step of each optimiser on the loss of its name. All gradients are taken before the first
    step, each for the optimiser's own parameters alone."""
    gradients = {}
    for name, loss in losses.items():
        groups = optimisers[name].param_groups
        parameters = [p for group in groups for p in group["params"]]
        gradients[name] = torch.autograd.grad(loss, parameters, retain_graph=True)
    for name, values in gradients.items():
        step(optimisers[name], values)


def expectile_values(
    value: Tensor, target: Tensor, next_target: Tensor, batch: Batch, expectile: float
) -> Tensor:
    """GCIVL's value loss, a sum over the two nets n of mean |tau - 1(A < 0)| (q_n - V_n)^2, with
    q_n = r + discount V'_n(s', g) and the advantage A = r + discount min_n V'_n(s', g) - mean_n
    V'_n(s, g) of the targets V', which are `target` at s and `next_target` at s', all [2, B]."""
    check_shapes(
        value=(value, "N B"),
        target=(target, "N B"),
        next_target=(next_target, "N B"),
        reward=(batch.reward, "B"),
    )
    q = batch.reward + batch.discount * next_target
    advantage = batch.reward + batch.discount * next_target.min(0).values - target.mean(0)
    weight = torch.where(advantage >= 0, expectile, 1.0 - expectile)
    return (weight * (q - value).square()).mean(1).sum()


def weighted_policy_loss(
    log_prob: Tensor, advantage: Tensor, temperature: float
) -> tuple[Tensor, Metrics]:
    """-mean min(exp(alpha A), 100) log pi(a|s, g), all [B]."""
    return weighted_cloning(log_prob, exponential_weight(advantage, temperature, BOUND))


def climbing_policy_loss(q: Tensor, log_prob: Tensor, alpha: float) -> tuple[Tensor, Metrics]:
    """DDPG+BC: -mean Q / mean |Q| - alpha mean log pi(a|s, g), with `q` [B] at the policy's action
    and no gradient through the divisor."""
    check_shapes(q=(q, "B"), log_prob=(log_prob, "B"))
    climb = -q.mean() / (q.abs().mean() + 1e-6).detach()
    clone = -alpha * log_prob.mean()
    loss = climb + clone
    return loss, {"actor/loss": loss.detach(), "actor/bc": clone.detach()}


class LengthNormalised(nn.Module):
    """A network whose outputs [..., D] have the length sqrt(D)."""

    def __init__(
        self, inputs: int, hidden: Sequence[int], size: int, layer_norm: bool, generator: Generator
    ) -> None:
        super().__init__()
        self.net = MLP(
            inputs, hidden, size, activation="gelu", layer_norm=layer_norm, generator=generator
        )

    def forward(self, x: Tensor) -> Tensor:
        return normalised(self.net(x))


def normalised(x: Tensor) -> Tensor:
    """`x` [..., D] at the length sqrt(D)."""
    length: Tensor = x.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    return x / length * math.sqrt(x.shape[-1])


class GoalValues(nn.Module):
    """Two values V(s, g) and their targets; with a `size` above 0 of a representation phi(s, g) of
    the goal in its place, which has no target of its own."""

    def __init__(
        self, spec: Spec, config: GoalValueConfig, generator: Generator, size: int = 0
    ) -> None:
        super().__init__()
        hidden, norm = config.hidden, config.layer_norm
        self.entries, self.normaliser = GoalEntries(spec), input_normaliser(spec, config)
        self.represent: LengthNormalised | None = None
        inputs = spec.obs_dim
        if size > 0:
            self.represent = LengthNormalised(inputs, hidden, size, norm, generator)
            inputs = len(self.entries.own) + size
        self.values = EnsembleMLP(
            2, inputs, hidden, 1, activation="gelu", layer_norm=norm, generator=generator
        )
        self.targets = target_copy(self.values)

    def inputs(self, obs: Tensor) -> Tensor:
        """What the values see of raw `obs` [B, S]."""
        obs = self.normaliser(obs)
        if self.represent is None:
            return obs
        return torch.cat([self.entries.own_of(obs), self.represent(obs)], -1)

    def mean(self, obs: Tensor, goal: Tensor) -> Tensor:
        """Mean of the two values [B] of `goal` [B, G] at `obs` [B, S]."""
        seen = self.inputs(self.entries.with_goal(obs, goal))
        values = self.values(seen)[..., 0]
        return values.mean(0)

    def loss(self, batch: Batch, expectile: float) -> tuple[Tensor, Metrics]:
        """`expectile_values` of the goals in the batch's observations."""
        seen = self.inputs(batch.obs)
        value = self.values(seen)[..., 0]
        with torch.no_grad():
            target = self.targets(seen)[..., 0]
            next_target = self.targets(self.inputs(batch.next_obs))[..., 0]
        loss = expectile_values(value, target, next_target, batch, expectile)
        return loss, {"value/loss": loss.detach(), "value/mean": value.detach().mean()}

    @torch.no_grad()
    def advantage(self, later: Tensor, obs: Tensor, goal: Tensor) -> Tensor:
        """V(s_later, g) - V(s, g) [B], means of the two values, for `goal` [B, G]."""
        return self.mean(later, goal) - self.mean(obs, goal)
