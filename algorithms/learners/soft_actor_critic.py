"""The learner that the SAC family shares: a squashed-Gaussian actor, a batched critic ensemble and
a temperature. What a paper changes is the loss of the critics or their target, which it passes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.learners.critics import critics, q_values
from mbrl.buffer import Batch
from mbrl.config import (
    Count,
    Discount,
    Finite,
    NonNegative,
    Positive,
    Probability,
    Rate,
    Settings,
    Widths,
)
from mbrl.errors import ConfigError
from mbrl.native.actor_critic import SoftSteps, soft_steps
from mbrl.networks import (
    EnsembleMLP,
    SquashedGaussianPolicy,
    adam,
    descend,
    ensemble_values,
    minimum_value,
    polyak_update,
    target_copy,
)
from mbrl.shapes import check_shapes
from mbrl.types import Spec

Metrics = dict[str, Tensor]
CRITIC_METRICS = tuple(
    f"critic/{name}" for name in ("loss", "q_mean", "q_spread", "penalty", "diversity")
)


@dataclass(frozen=True)
class LearnerConfig(Settings):
    """Settings of the soft actor-critic learner."""

    critics: Count = 2  # N, independent critics
    hidden: Widths = (256, 256, 256)  # widths of actor and critics
    eta: NonNegative = 0.0  # weight of EDAC's gradient-diversity term
    gamma: Discount = 0.99  # discount factor
    tau: Rate = 0.005  # rate of the target average
    batch_size: Count = 256  # rows an update
    actor_lr: Positive = 3e-4  # Adam, actor
    critic_lr: Positive = 3e-4  # Adam, critics
    alpha_lr: Positive = 3e-4  # Adam, log temperature
    alpha: Positive = 1.0  # initial temperature
    learn_alpha: bool = True  # adapt it towards the target entropy
    target_entropy: Finite | None = None  # None: minus the number of action dimensions
    entropy_in_target: bool = True  # subtract alpha log pi in the critic's target
    target_min_of: Count | None = None  # min over this many random critics; None: all
    actor_value: Literal["min", "mean"] = "min"  # the value the actor climbs
    huber: Positive | None = None  # Huber threshold of the critic loss; None: squared
    normalise_obs: bool = False  # standardise observations with the data's statistics
    layer_norm: Literal["none", "critics", "all"] = "none"  # in the critics, or the actor too
    policy_every: Count = 1  # in a task: updates of the critics for one of actor and temperature
    policy_average: Probability = 0.0  # rate of the average of the policy that acts; 0: none
    # edac: small last layers, hidden biases 0.1; corl: that, and CORL's small first critic layer
    init: Literal["torch", "edac", "corl"] = "edac"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eta > 0 and self.critics < 2:
            raise ConfigError(
                f"eta is {self.eta} with {self.critics} critics; above 0 it needs at least two "
                "critics to be diverse"
            )
        if self.eta > 0 and self.layer_norm != "none":
            raise ConfigError(
                f"eta is {self.eta} with layer_norm {self.layer_norm!r}; the diversity term knows "
                "critics without LayerNorm alone: set one of the two to its default"
            )
        if self.target_min_of is not None and self.target_min_of > self.critics:
            raise ConfigError(
                f"target_min_of is {self.target_min_of}, it must lie in 1..{self.critics} (critics)"
            )


@dataclass(frozen=True)
class SoftConfig(Settings):
    """The settings of an algorithm that has a soft actor-critic learner."""

    learner: LearnerConfig = field(default_factory=LearnerConfig)

    @property
    def gamma(self) -> float:
        return self.learner.gamma


def soft_target(
    reward: Tensor, discount: Tensor, next_q: Tensor, next_log_prob: Tensor | None, alpha: Tensor
) -> Tensor:
    """y = r + discount (min_n Q_n - alpha log pi), [B], from `next_q` [N, B].

    Soft Actor-Critic Algorithms and Applications (arXiv 1812.05905), eq. 3, with the minimum over
    all given critics. `next_log_prob` None leaves the entropy out.
    """
    check_shapes(
        reward=(reward, "B"),
        discount=(discount, "B"),
        next_q=(next_q, "N B"),
        next_log_prob=(next_log_prob, "B"),
    )
    value = next_q.min(0).values
    if next_log_prob is not None:
        value = value - alpha * next_log_prob
    return reward + discount * value


def critic_loss(q: Tensor, target: Tensor, huber: float | None) -> tuple[Tensor, Metrics]:
    """Sum over critics of the batch-mean error of `q` [N, B] against `target` [B]: squared, or
    Huber's with the threshold `huber`."""
    check_shapes(q=(q, "N B"), target=(target, "B"))
    goal = target.expand_as(q)
    if huber is None:
        loss = (q - goal).square().mean(1).sum()
    else:
        loss = F.huber_loss(q, goal, reduction="none", delta=huber).mean(1).sum()
    return loss, {
        "critic/loss": loss.detach(),
        "critic/q_mean": q.detach().mean(),
        "critic/q_spread": q.detach().std(0, correction=0).mean(),
        "critic/penalty": (q.detach().mean(0) - q.detach().min(0).values).mean(),
    }


def actor_loss(log_prob: Tensor, value: Tensor, alpha: Tensor) -> tuple[Tensor, Metrics]:
    """Batch mean of alpha log pi(a|s) - Q(s, a), both [B]."""
    check_shapes(log_prob=(log_prob, "B"), value=(value, "B"))
    loss = (alpha * log_prob - value).mean()
    return loss, {"actor/loss": loss.detach(), "actor/entropy": -log_prob.detach().mean()}


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: Tensor | float) -> Tensor:
    """-log alpha (log pi + target entropy), batch mean; its sign moves the temperature."""
    return -log_alpha * (log_prob.detach() + target_entropy).mean()


class SoftActorCritic:
    """Networks, targets, optimisers and the update.

    `critic_loss` and `target` are what an algorithm puts in the place of squared errors and of the
    soft target (from learner, batch and the metrics of the policy's step), `actor_term` what it
    adds to the actor's loss; `samples` more draws a state and `shifts` of all states come with a
    batch for them. `remembered` [2] is what
    the values still hold of earlier temperatures (`value_memory`). With `policy_average` the
    `policy` that acts and is evaluated is an average of the actor's weights; updates and rollouts
    in a model take the present `actor`. Where it can, compiled code (`mbrl.native`) takes the steps
    from the second update on, the critics' with `compiled_critics` only: whether `critic_loss` is
    what it knows, the errors and EDAC's diversity term.
    """

    def __init__(
        self,
        spec: Spec,
        config: LearnerConfig,
        device: torch.device,
        generator: torch.Generator,
        *,
        critic_loss: "CriticLoss | None" = None,
        target: "Target | None" = None,
        actor_term: "ActorTerm | None" = None,
        samples: int = 0,
        shifts: int = 0,
        compiled_critics: bool = False,
    ) -> None:
        if config.eta > 0 and critic_loss is None:
            raise ConfigError(
                f"eta is {config.eta}, but these critics have no diversity term; set it to 0, or "
                "take EDAC (logged data) or RAVL (imagined rollouts), whose critics have one"
            )
        self.spec, self.config = spec, config
        self.critic_loss, self.target_of = critic_loss or regression, target or plain_target
        self.actor_term = actor_term
        self.samples, self.shifts = samples, shifts
        self.offline = True  # whether it learns from logged data alone; the agent sets it
        self.count = 0  # of updates before the one that is under way
        self.remembered = torch.zeros(2, device=device)
        norms = config.layer_norm
        self.actor = SquashedGaussianPolicy(
            spec, config.hidden, layer_norm=norms == "all", generator=generator
        )
        self.critic = critics(
            spec, config.critics, config.hidden, generator, layer_norm=norms != "none"
        )
        if config.normalise_obs:
            self.critic.standardise(spec.obs_dim)
        if config.init != "torch":
            edac_initialisation(list(self.actor.net.layers), self.critic, generator)
        if config.init == "corl":
            corl_first_layer(self.critic, generator)
        self.actor, self.critic = self.actor.to(device), self.critic.to(device)
        self.target = target_copy(self.critic)
        log_alpha = torch.tensor(float(config.alpha)).log()
        self.log_alpha = nn.Parameter(log_alpha.to(device))
        entropy = config.target_entropy
        self.target_entropy = -float(spec.action_dim) if entropy is None else entropy
        self.modules: dict[str, nn.Module] = {
            "actor": self.actor,
            "critic": self.critic,
            "target": self.target,
            "temperature": nn.ParameterDict({"log_alpha": self.log_alpha}),
        }
        if config.policy_average > 0:
            self.modules["average"] = target_copy(self.actor)
        self.optimisers: dict[str, torch.optim.Optimizer] = {
            "actor": adam(self.actor.parameters(), config.actor_lr),
            "critic": adam(self.critic.parameters(), config.critic_lr),
            "alpha": adam([self.log_alpha], config.alpha_lr),
        }
        self.compiled_critics = compiled_critics or critic_loss is None
        self.compiled = None if actor_term is not None else soft_steps(self)
        self.steps: SoftSteps | None = None  # those of an update that is under way

    @property
    def policy(self) -> SquashedGaussianPolicy:
        policy = self.modules.get("average", self.actor)
        assert isinstance(policy, SquashedGaussianPolicy)
        return policy

    def draw(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch with the random draws an update needs: two actions a state, the target critics,
        and `samples` further actions."""
        config, device = self.config, batch.obs.device
        shape = (len(batch.obs), self.spec.action_dim)
        noise = torch.randn((2, *shape), generator=generator, device=device)
        subset = None
        if config.target_min_of is not None:
            order = torch.randperm(config.critics, generator=generator, device=device)
            subset = order[: config.target_min_of]
        if self.samples > 0:
            more = torch.randn((self.samples, *shape), generator=generator, device=device)
            noise = torch.cat([noise, more])
        shift = None
        if self.shifts > 0:
            size = (self.shifts, self.spec.obs_dim)
            shift = 2 * torch.rand(size, generator=generator, device=device) - 1
        return batch._replace(noise=noise, subset=subset, shift=shift)

    def update(self, batch: Batch, count: int = 0) -> Metrics:
        """One step of temperature, actor, critics, target and averaged policy, in that order, in
        a task the first two in one of `policy_every` updates alone; the average begins at the
        policy after the first update (`count` 0)."""
        self.count = count
        compiled, every = self.compiled, 1 if self.offline else self.config.policy_every
        self.steps = compiled if compiled is not None and compiled.ready(batch) else None
        turn = count % every == 0
        metrics = self.update_policy(batch) if turn else {}
        metrics |= self.update_critic(batch, self.target_of(self, batch, metrics))
        if self.steps is None:
            polyak_update(self.target, self.critic, self.config.tau)
        else:
            self.steps.average()
            self.steps = None
        if "average" in self.modules:
            rate = self.config.policy_average if count > 0 else 1.0
            polyak_update(self.modules["average"], self.actor, rate)
        if turn:
            self.remembered.copy_(value_memory(self, metrics, every))
        return metrics

    def update_policy(self, batch: Batch) -> Metrics:
        assert batch.noise is not None
        if self.steps is not None:
            names = ("actor/loss", "actor/entropy", "actor/alpha")
            return dict(zip(names, self.steps.policy(batch).unbind(), strict=True))
        action, log_prob = self.actor.sample(batch.obs, batch.noise[0])
        if self.config.learn_alpha:
            loss = temperature_loss(self.log_alpha, log_prob, self.target_entropy)
            descend(self.optimisers["alpha"], loss)
        alpha = self.log_alpha.detach().exp()
        x = torch.cat([batch.obs, action], -1)
        if self.config.actor_value == "min":
            value = minimum_value(self.critic, x, self.spec.action_dim)
        elif self.critic.layer_norm:
            value = self.critic(x)[..., 0].mean(0)
        else:
            value = ensemble_values(self.critic, x, frozen=True)[0].mean(0)
        loss, metrics = actor_loss(log_prob, value, alpha)
        if self.actor_term is not None:
            term, measured = self.actor_term(self, batch)
            loss, metrics = loss + term, metrics | measured
        descend(self.optimisers["actor"], loss)
        return metrics | {"actor/alpha": alpha}

    def update_critic(self, batch: Batch, target: Tensor) -> Metrics:
        if self.steps is not None and self.compiled_critics:
            metrics = dict(zip(CRITIC_METRICS, self.steps.critics.step(batch, target), strict=True))
            if self.config.eta == 0:
                del metrics["critic/diversity"]
            return metrics | {"critic/target": target.mean()}
        loss, metrics = self.critic_loss(self, batch, target)
        descend(self.optimisers["critic"], loss)
        return metrics | {"critic/target": target.mean()}


CriticLoss = Callable[[SoftActorCritic, Batch, Tensor], tuple[Tensor, Metrics]]
Target = Callable[[SoftActorCritic, Batch, Metrics], Tensor]
ActorTerm = Callable[[SoftActorCritic, Batch], tuple[Tensor, Metrics]]


def plain_target(learner: SoftActorCritic, batch: Batch, metrics: Metrics) -> Tensor:
    """The soft target [B] of the batch."""
    return soft_value_target(learner, batch)


@torch.no_grad()
def soft_value_target(
    learner: SoftActorCritic, batch: Batch, penalty: Tensor | None = None
) -> Tensor:
    """The soft target [B] of the batch, with `penalty` [B] taken off its rewards."""
    assert batch.noise is not None
    if learner.steps is not None:
        reward = batch.reward if penalty is None else batch.reward - penalty
        return learner.steps.soft_target(batch, reward)
    action, log_prob = learner.actor.sample(batch.next_obs, batch.noise[1])
    q = q_values(learner.target, batch.next_obs, action)
    if batch.subset is not None:
        q = q[batch.subset]
    reward = batch.reward if penalty is None else batch.reward - penalty
    entropy = log_prob if learner.config.entropy_in_target else None
    return soft_target(reward, batch.discount, q, entropy, learner.log_alpha.detach().exp())


def regression(learner: SoftActorCritic, batch: Batch, target: Tensor) -> tuple[Tensor, Metrics]:
    """`critic_loss` of the batch's own actions."""
    q = q_values(learner.critic, batch.obs, batch.action)
    return critic_loss(q, target, learner.config.huber)


class Entropic(Protocol):
    """A learner with a temperature, as far as its values' memory is concerned."""

    spec: Spec
    config: Any
    target_entropy: float
    remembered: Tensor


def value_memory(learner: Entropic, metrics: Metrics, updates: int = 1) -> Tensor:
    """The temperature and the mean entropy bonus of a step [2] that the values hold after so many
    `updates` with these `metrics` (0 in new values).

    Values that fit their targets exactly follow alpha H / (1 - gamma) at the target average's rate
    times 1 - gamma: with 0.005 and 0.99 over some 20,000 updates, in which a learned temperature
    may fall a hundredfold. Such an old bonus is no overestimation, though no step pays it now.
    """
    config = learner.config
    entropy = metrics["actor/entropy"].clamp(*entropy_range(learner))
    rate = 1 - (1 - config.tau * (1 - config.gamma)) ** updates
    alpha = metrics["actor/alpha"]
    return torch.lerp(learner.remembered, torch.stack([alpha, alpha * entropy]), rate)


def entropy_range(learner: Entropic) -> tuple[float, float]:
    """The entropies that a policy is given credit for: from the target to that of uniform
    actions."""
    most = learner.spec.action_dim * math.log(2)
    return min(learner.target_entropy, most), most


@torch.no_grad()
def edac_initialisation(
    actor_layers: Sequence[nn.Module], critic: EnsembleMLP, generator: torch.Generator
) -> None:
    """Hidden biases 0.1; last layers uniform, +-1e-3 for the actor and +-3e-3 for the critics (the
    EDAC authors' settings)."""
    *hidden, last = actor_layers
    for layer in hidden:
        assert isinstance(layer, nn.Linear)
        layer.bias.fill_(0.1)
    assert isinstance(last, nn.Linear)
    for bound, tensors in (
        (1e-3, [last.weight, last.bias]),
        (3e-3, [critic.weights[-1], critic.biases[-1]]),
    ):
        for t in tensors:
            t.copy_(torch.rand(t.shape, generator=generator) * (2 * bound) - bound)
    for bias in list(critic.biases)[:-1]:
        bias.fill_(0.1)


@torch.no_grad()
def corl_first_layer(critic: EnsembleMLP, generator: torch.Generator) -> None:
    """First critic layer as in the code that CORL's and RAVL's published numbers come from: its
    range takes the fan-in from the wrong side of an [in, out] matrix, U(+-1 / sqrt(out)) instead of
    U(+-1 / sqrt(in)), 4 to 8 times smaller on small tasks (CORL, `VectorizedLinear`)."""
    weight = critic.weights[0]
    bound = weight.shape[-1] ** -0.5
    weight.copy_(torch.rand(weight.shape, generator=generator) * (2 * bound) - bound)
