"""What recipes need beside log-probs and a critic, made from the episodes of a run in control."""

import dataclasses
import math
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from algorithms.control.critic import Critic
from algorithms.learners import generalised_gaussian
from mbrl.errors import ConfigError
from mbrl.networks import CategoricalPolicy, SquashedGaussianPolicy, adam, descend
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.axes.credit import Bootstrapped, BundleRisk
from mbrl.policy_gradient.axes.reward import outcome
from mbrl.policy_gradient.groups import numbered
from mbrl.policy_gradient.measure import Measure, chosen
from mbrl.policy_gradient.measures.group_ids import bundled
from mbrl.policy_gradient.measures.schedules import grown
from mbrl.policy_gradient.measures.trackers import EntropyHistory, QuantileTracker, RoundCounter
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields
from mbrl.training import Metrics
from mbrl.types import Trajectories

SMALL = 0.005  # of a critic's first values, which returns below are small beside


def log_probs_and_entropy(policy: nn.Module, t: Trajectories) -> tuple[Tensor, Tensor]:
    """log pi of the actions of `t` and the policy's entropy, both [B, T], among the actions that
    its `action_mask` allows; of a squashed Gaussian actions and entropy are those before the
    squash."""
    if isinstance(policy, CategoricalPolicy):
        log_pi = torch.log_softmax(policy.logits(t.obs, t.action_mask), -1)
        chosen = log_pi.gather(-1, t.action.long()[..., None])[..., 0]
        return chosen, -(log_pi.exp() * log_pi).sum(-1)
    assert isinstance(policy, SquashedGaussianPolicy)
    _, log_std = policy.distribution(t.obs)
    entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
    return policy.log_prob_of_draw(t.obs, t.action), entropy


@dataclass(frozen=True)
class Episodes:
    """A round of episodes."""

    data: Trajectories

    def select(self, rows: Tensor) -> "Episodes":
        return Episodes(self.data.select(rows))

    def compact(self) -> "Episodes":
        """Groups numbered anew, as ids are to be below the number of steps."""
        groups = {name: numbered(ids) for name, ids in self.data.groups.items()}
        return Episodes(dataclasses.replace(self.data, groups=groups))


class ControlMeasure(Measure[Episodes]):
    """A measure of episodes."""

    discrete: ClassVar[bool] = False  # whether it means nothing for continuous actions
    greedy: ClassVar[bool] = False  # whether the last copy of every start acts greedily

    def on_episodes(self, episodes: Episodes, group: int) -> Episodes:
        """A round's episodes as they came in."""
        return episodes


class GreedyReturn(ControlMeasure):
    """`signals.greedy_return`: what the greedy policy earned from the same start. The last copy of
    every start acts greedily and is not learned from, so that it costs no steps beyond the round.
    ReMax, arXiv 2310.10505."""

    provides = ("signals.greedy_return",)
    fulfils = (Requirement.GREEDY_ANSWERS,)
    greedy = True

    def on_episodes(self, episodes: Episodes, group: int) -> Episodes:
        t = episodes.data
        last = torch.arange(len(t.mask), device=t.mask.device) % group == group - 1
        earned = outcome(t)[last, 0].repeat_interleave(group - 1)
        return with_fields(episodes.select(~last), "signals", greedy_return=earned)


class Bundles(ControlMeasure):
    """Bundles of about five starts with their papers, and the tracked quantiles of the papers'
    scores. RiskPO, arXiv 2510.00911."""

    provides = BundleRisk().needs()[1:]  # but the prompt
    fulfils = (Requirement.BUNDLES, Requirement.SCORE_QUANTILES)

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.tracker = QuantileTracker((0.2, 0.8), 0.1)

    def on_episodes(self, episodes: Episodes, group: int) -> Episodes:
        t = episodes.data
        bundles = bundled(t.groups["prompt"][:, 0].tolist(), outcome(t)[:, 0].tolist())
        ids = {"bundle": torch.tensor(bundles.bundle), "paper": torch.tensor(bundles.paper)}
        low, high = self.tracker.update(bundles.scores).tolist()
        device, like = t.mask.device, t.reward
        groups = {name: x.to(device) for name, x in ids.items()}
        episodes = with_fields(episodes, "groups", **groups)
        quantiles = {"quantile_low": low, "quantile_high": high}
        signals = {name: torch.full_like(like, x) for name, x in quantiles.items()}
        return with_fields(episodes, "signals", **signals)


class GradientNorms(ControlMeasure):
    """`signals.gradient_norm_squared` of an episode: the squared norm of the gradient of the sum of
    its log-probs with regard to the policy's weights. VCPO, arXiv 2602.17616."""

    provides = ("signals.gradient_norm_squared",)
    fulfils = (Requirement.GRADIENT_NORMS,)

    def measure(self, episodes: Episodes) -> Episodes:
        t = episodes.data
        policy, norms = self.agent.policy, []
        weights = list(policy.parameters())
        for i in range(len(t.mask)):
            own = t.select(torch.tensor([i], device=t.mask.device))
            with torch.enable_grad():
                total = torch.where(own.mask, log_probs_and_entropy(policy, own)[0], 0.0).sum()
                gradients = torch.autograd.grad(total, weights)
            norms.append(torch.stack([g.square().sum() for g in gradients]).sum())
        return with_fields(episodes, "signals", gradient_norm_squared=torch.stack(norms))


class EntropyOfTurns(ControlMeasure):
    """`signals.entropy_history`: the mean entropy of all steps of its number in earlier rounds.
    EPO, arXiv 2509.22576. Its band is a multiple of it, which has no meaning for the entropy of a
    density."""

    provides = ("signals.entropy_history",)
    fulfils = (Requirement.ENTROPY_HISTORY,)
    discrete = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.tracker = EntropyHistory()

    def measure(self, episodes: Episodes) -> Episodes:
        t = episodes.data
        assert t.entropy is not None
        turn = t.segments["turn"]
        history = self.tracker.update(t.entropy[t.mask], turn[t.mask])
        table = torch.tensor(history, dtype=t.reward.dtype, device=turn.device)
        past = torch.where(t.mask, table[turn.clamp_max(len(table) - 1)], 0.0)
        return with_fields(episodes, "signals", entropy_history=past)


class EntropyControl(ControlMeasure):
    """`signals.entropy_weight`: the weight of the recipe's `EntropyTarget` in this round, by the
    mean entropy of its steps. "Skywork Open Reasoner 1 Technical Report", arXiv 2505.22312."""

    provides = ("signals.entropy_weight",)
    fulfils = (Requirement.ENTROPY_WEIGHT,)

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        tracker = agent.recipe.entropy_weight()
        assert tracker is not None  # nothing else reads it
        self.tracker = tracker

    def measure(self, episodes: Episodes) -> Episodes:
        t = episodes.data
        assert t.entropy is not None
        weight = self.tracker.update(float(t.entropy[t.mask].mean()))
        return with_fields(episodes, "signals", entropy_weight=torch.full_like(t.reward, weight))


class GrowingShare(ControlMeasure):
    """`signals.schedule`: min(1, round / `ramp_rounds`), rounds from 0. D3S, arXiv 2509.22115."""

    provides = ("signals.schedule",)
    fulfils = (Requirement.GROWING_SHARE,)

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.tracker = RoundCounter()

    def measure(self, episodes: Episodes) -> Episodes:
        growth = grown(self.tracker.next(), self.agent.config.ramp_rounds)
        value = torch.full_like(episodes.data.reward, growth)
        return with_fields(episodes, "signals", schedule=value)


class CriticValues(ControlMeasure):
    """`signals.value` and `signals.next_value` of a critic that is learned beside the policy, on
    squared errors to the targets of the recipe's credit, or on their likelihood under a generalised
    Gaussian whose shape the critic learns, too."""

    provides = ("signals.value",)
    fulfils = (Requirement.CRITIC,)

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        c, spec = agent.config, agent.spec
        self.shaped = c.critic_loss == "generalised_gaussian"
        numbers = 2 if self.shaped else 1
        critic = Critic(spec, c.hidden, c.activation, agent.initial, numbers)
        self.critic = critic.to(agent.device)
        self.modules = {"critic": self.critic}
        self.optimisers = {"critic": adam(self.critic.parameters(), c.critic_rate)}
        credits = [term.credit for term in agent.recipe.terms]
        self.credit = next((c for c in credits if isinstance(c, Bootstrapped)), None)

    def measure(self, episodes: Episodes) -> Episodes:
        t = episodes.data
        values = {"value": self.critic(t.obs), "next_value": self.critic(t.next_obs)}
        return with_fields(episodes, "signals", **values)

    def targets(self, episodes: Episodes) -> dict[str, Tensor]:
        """They also are what the critic's output is measured in from now on."""
        if self.credit is None:
            return {}
        t = episodes.data
        target = self.credit.targets(t.reward, t)
        if self.agent.aims.count == 0:
            self._warn_of_unit(t)
        self.agent.aims.add(target[t.mask][:, None])
        self.critic.rescale(self.agent.aims)
        return {"value": target}

    def _warn_of_unit(self, t: Trajectories) -> None:
        """Warn where the critic, before it has learned, gives numbers far beyond any return: they
        are part of the first targets, whose deviation is the unit of all that follow."""
        most = float(t.reward.sum(1).abs().max())
        given = float(t.signals["value"][t.mask].abs().max())
        if 0 < most < SMALL * given:
            warnings.warn(
                f"no return of the first episodes is beyond {most:.2g}, and the critic begins with "
                f"values up to {given:.2g}, which it unlearns slowly; give rewards in a smaller "
                "unit, so that returns are around 1 or above",
                stacklevel=2,
            )

    def learn(self, episodes: Episodes, targets: dict[str, Tensor]) -> Metrics:
        if self.credit is None:
            return {}
        t = episodes.data
        value, last = self.critic.outputs(t.obs)
        error = torch.where(t.mask, value - targets["value"], 0.0) / self.critic.scale
        if self.shaped:
            loss = generalised_gaussian.loss(
                error[t.mask], generalised_gaussian.shape(last[t.mask])
            )
        else:
            loss = error.square().sum() / t.mask.sum().clamp_min(1)
        descend(self.optimisers["critic"], loss, self.agent.config.clip_norm)
        return {"critic/loss": loss.detach()}


MEASURES: tuple[type[ControlMeasure], ...] = (
    CriticValues,
    GreedyReturn,
    Bundles,
    GradientNorms,
    EntropyOfTurns,
    EntropyControl,
    GrowingShare,
)


def needed(objective: Recipe) -> list[type[ControlMeasure]]:
    """The measures that the recipe needs."""
    return chosen(objective, MEASURES)


def check(objective: Recipe, group: int, pool: int) -> None:
    """Raises `ConfigError` where a start's last copy is to act greedily and cannot."""
    if any(kind.greedy for kind in needed(objective)):
        if group < 2:
            raise ConfigError(
                f"recipe {objective.name} has the last copy of every start act greedily, and group "
                f"is {group}: nothing would be learned from; set group to 2 or more"
            )
        if pool:
            raise ConfigError(
                f"recipe {objective.name} has the last copy of every start act greedily, which "
                f"rounds of a scheduler do not; pool is {pool}, set it to 0"
            )
