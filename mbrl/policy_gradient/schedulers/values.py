"""Schedulers with a prior of a prompt's value: V_0, which reads it off the policy's recent results
on other prompts, and V_{0.5}, which buys more rollouts where the prior turns out wrong."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mbrl.config import Count, CountOrZero, Positive, Probability, Settings
from mbrl.errors import ConfigError
from mbrl.networks import MLP, adam, descend
from mbrl.policy_gradient.measures.trackers import SuccessTracker, one_more, shrinkage
from mbrl.policy_gradient.schedulers.allocation import (
    first_places,
    rates,
    remember,
    spread,
    successes,
    tally,
)
from mbrl.policy_gradient.schedulers.scheduler import Outcome, Pool, Request, Scheduler


class InContextValue(nn.Module):
    """Success probability of prompts from what a policy scored on others, without updates for a new
    policy: kernel regression on learned embeddings of the features, with a number of imaginary
    prompts that score the context's mean; log-odds are then stretched about that mean, because
    averages of scores lie too near to it."""

    def __init__(
        self,
        features: int,
        *,
        hidden: tuple[int, ...] = (32,),
        width: int = 8,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.embed = MLP(features, hidden, width, generator=generator)
        self.log_sharpness = nn.Parameter(torch.tensor(1.0))
        self.log_imaginary = nn.Parameter(torch.tensor(0.0))
        self.log_stretch = nn.Parameter(torch.tensor(0.0))

    def forward(self, known: Tensor, scores: Tensor, features: Tensor) -> Tensor:
        """[M] probabilities for `features` [M, D], given `scores` [C] in [0, 1] at `known`
        [C, D]; one half where nothing is known."""
        distance = torch.cdist(self.embed(features), self.embed(known)) ** 2
        weight = torch.exp(-self.log_sharpness.exp() * distance)
        imaginary = self.log_imaginary.exp()
        centre = (scores.sum() + 0.5) / (len(scores) + 1)
        near = (weight @ scores + imaginary * centre) / (weight.sum(1) + imaginary)
        middle, odds = (x.clamp(1e-4, 1 - 1e-4).logit() for x in (centre, near))
        return torch.sigmoid(middle + self.log_stretch.exp() * (odds - middle))


def fit_value(
    value: InContextValue,
    features: Tensor,
    scores: Tensor,
    generator: torch.Generator,
    *,
    steps: int = 500,
    context: int = 64,
    lr: float = 3e-3,
) -> Tensor:
    """Trains `value` on the `scores` [K, N] of K policies (or checkpoints of one) at prompts with
    `features` [N, D]: each step takes a policy, shows `context` of its scores and asks for the
    others. Returns the last cross-entropy."""
    if scores.ndim != 2 or scores.shape[1] != len(features) or context >= len(features):
        raise ValueError(
            f"scores {tuple(scores.shape)}, features {tuple(features.shape)}, context {context}; "
            "give scores [K, N], features [N, D] and a context below N"
        )
    optimiser = adam(value.parameters(), lr)
    loss = torch.zeros(())
    for _ in range(steps):
        row = scores[int(torch.randint(len(scores), (), generator=generator))]
        mixed = torch.randperm(len(features), generator=generator)
        shown, asked = mixed[:context], mixed[context:]
        guess = value(features[shown], row[shown], features[asked]).clamp(1e-6, 1 - 1e-6)
        loss = nn.functional.binary_cross_entropy(guess, row[asked])
        descend(optimiser, loss)
    return loss.detach()


class Context:
    """The latest `size` prompts that a policy answered, with their mean scores."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.known, self.scores = torch.zeros(0, dtype=torch.int64), torch.zeros(0)

    def __len__(self) -> int:
        return len(self.known)

    @torch.no_grad()
    def predict(self, value: InContextValue, features: Tensor, prompts: Tensor) -> Tensor:
        """[P]: the success probability of `prompts` [P]."""
        guess: Tensor = value(features[self.known], self.scores, features[prompts])
        return guess

    def add(self, outcome: Outcome, size: int) -> None:
        """Of a pool of `size` prompts."""
        counted = tally(successes(outcome), size)
        ids = counted.prompts
        stale = torch.isin(self.known, ids)
        known = torch.cat([self.known[~stale], ids])
        scores = torch.cat([self.scores[~stale], counted.mean[ids].float()])
        self.known, self.scores = known[-self.size :], scores[-self.size :]

    def state_dict(self) -> dict[str, Tensor]:
        return {"known": self.known.clone(), "scores": self.scores.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.known, self.scores = state["known"].clone(), state["scores"].clone()


def utility(rollouts: Tensor, p: Tensor) -> Tensor:
    """B (1 - p) (1 - (1 - p)^(B - 1)): the mean number of failures among B `rollouts` of success
    probability `p` where not all fail."""
    return rollouts * (1 - p) * (1 - (1 - p) ** (rollouts - 1))


def greedy(p: Tensor, total: int, low: int, high: int) -> Tensor:
    """int64 [P]: from `low` to `high` rollouts for each of `p` [P], `total` of them or what these
    bounds allow; after `low` for all, each to the largest gain in utility, of equal ones the
    first."""
    shares = torch.full((len(p),), float(low), dtype=torch.float64)
    for _ in range(min(total, high * len(p)) - low * len(p)):
        gain = utility(shares + 1, p) - utility(shares, p)
        shares[int(torch.where(shares < high, gain, -torch.inf).argmax())] += 1
    return shares.long()


@dataclass(frozen=True)
class V0Config(Settings):
    context: Count = 256  # prompts that are remembered with their scores
    fewest: CountOrZero = 2  # rollouts of a prompt
    most: Count = 128
    width: Count = 8  # of the embedding
    hidden: tuple[Count, ...] = (32,)
    seed: CountOrZero = 0  # of the embedding's first weights


class V0(Scheduler):
    """Rollouts one after the other to the prompt whose `utility` grows most by it, at the success
    probabilities that `value` predicts from the policy's latest results; without any, all alike.
    Pass a `value` that was trained with `fit_value`, else its embedding is a random one. `acts`:
    the deviation of a round's rollouts over their mean.

    "V_0: A Generalist Value Model for Any Policy at State Zero", arXiv 2602.03584.
    """

    beliefs = ("value", "context")

    def __init__(
        self,
        pool: Pool,
        budget: int,
        group: int,
        config: V0Config = V0Config(),
        value: InContextValue | None = None,
    ) -> None:
        super().__init__(pool, budget, group)
        pool.needs("features")
        if not 1 <= config.fewest <= group <= config.most or config.context < 1:
            raise ConfigError(
                f"fewest {config.fewest}, most {config.most}, context {config.context} with groups "
                f"of {group}; give 1 <= fewest <= group <= most and a context of at least 1"
            )
        assert pool.features is not None
        self.config, self.features = config, pool.features.float()
        self.value = value or InContextValue(
            self.features.shape[1],
            hidden=config.hidden,
            width=config.width,
            generator=torch.Generator().manual_seed(config.seed),
        )
        self.context = Context(config.context)

    def request(self, generator: torch.Generator) -> Request:
        places = min(self.places, self.pool.size)
        ids = torch.randperm(self.pool.size, generator=generator)[:places]
        p = self.predict(ids).double().clamp(1e-3, 1 - 1e-3)
        shares = greedy(p, places * self.group, self.config.fewest, self.config.most)
        self.acts = float(shares.double().std(correction=0) / shares.double().mean())
        return Request.of(ids, shares)

    def predict(self, prompts: Tensor) -> Tensor:
        """[P]: the success probability of each."""
        return self.context.predict(self.value, self.features, prompts)

    def observe(self, outcome: Outcome, generator: torch.Generator) -> None:
        self.context.add(outcome, self.pool.size)
        super().observe(outcome, generator)


@dataclass(frozen=True)
class V05Config(Settings):
    cost: Positive = 1 / 1024  # of a rollout, in squared error of a success rate
    most: Count = 16  # rollouts of a prompt
    first: Probability = 0.5  # share of the budget for the first pass
    discount: Probability = 0.9  # of an answer by the next, where the prior is what was seen
    context: Count = 256  # prompts that are remembered with their scores, for a value model


class V05(Scheduler):
    """`group` rollouts of each prompt, and one more at a time, up to `most`, while their mean
    speaks against the prior and another one would lower the error by more than `cost`. The prior is
    what `believe` was given, else that of `value` (of V_0, trained with `fit_value`; the pool then
    needs features) from the policy's latest results, else the running success rate. `baseline`
    mixes both; `acts`: the share of prompts for which rollouts were bought.

    "V_{0.5}: Generalist Value Model as a Prior for Sparse RL Rollouts", arXiv 2603.10848.
    """

    beliefs = ("tracker", "told", "context")

    def __init__(
        self,
        pool: Pool,
        budget: int,
        group: int,
        config: V05Config = V05Config(),
        value: InContextValue | None = None,
    ) -> None:
        super().__init__(pool, budget, group)
        if config.most < group:
            raise ConfigError(f"most {config.most} with groups of {group}; give at least a group")
        self.config = config
        self.tracker = SuccessTracker(config.discount)
        self.told = torch.full((pool.size,), torch.nan, dtype=torch.float64)
        self.value, self.context = value, Context(config.context)

    def believe(self, values: Tensor) -> None:
        """Success probabilities [N] from a value model; NaN where it has none."""
        if values.shape != self.told.shape:
            raise ValueError(f"values have shape {tuple(values.shape)}; give [{self.pool.size}]")
        self.told = values.double().clone()

    def prior(self) -> Tensor:
        """float64 [N]"""
        guess = rates(self.tracker, self.pool.size)
        if self.value is not None and len(self.context):
            self.pool.needs("features")
            assert self.pool.features is not None
            every = torch.arange(self.pool.size)
            guess = self.context.predict(self.value, self.pool.features.float(), every).double()
        return torch.where(self.told.isnan(), guess, self.told)

    def priors(self) -> Tensor:
        return self.prior()

    def request(self, generator: torch.Generator) -> Request:
        places = first_places(self.budget, self.config.first, self.group)
        return spread(self.pool.size, min(places, self.pool.size), self.group, generator)

    def more(self, so_far: Outcome, generator: torch.Generator) -> Request | None:
        counted, prior = tally(successes(so_far), self.pool.size), self.prior()
        ids = counted.prompts
        v, mean, n = prior[ids], counted.mean[ids], counted.count[ids]
        gain = one_more(v, mean, n)
        wants = (gain > self.config.cost) & (n < self.config.most)
        # Who gains most is served first when the budget ends.
        order = torch.where(wants, gain, -1.0).argsort(descending=True, stable=True)
        left, wanted = self.budget - len(so_far.prompts), wants[order].long()
        paid = torch.minimum(wanted, (left - (wanted.cumsum(0) - wanted)).clamp_min(0))
        request = Request.of(ids[order], paid)
        return request if request.total else None

    def baseline(self, outcome: Outcome) -> Tensor:
        """float64 [R]: w prior + (1 - w) mean, for each rollout's prompt."""
        counted, prior = tally(successes(outcome), self.pool.size), self.prior()
        w = shrinkage(prior, counted.mean, counted.count.clamp_min(1))
        return (w * prior + (1 - w) * counted.mean)[outcome.prompts]

    def observe(self, outcome: Outcome, generator: torch.Generator) -> None:
        remember(self.tracker, outcome)
        self.context.add(outcome, self.pool.size)
        asked = torch.bincount(outcome.prompts)
        self.acts = float((asked > self.group).sum() / (asked > 0).sum())
        super().observe(outcome, generator)
