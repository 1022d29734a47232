"""Difficulty-targeted selection: a few reference prompts are answered, the difficulty of all others
is predicted from them by attention over features, and those nearest to one half are trained on."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.config import Count, NonNegative, Positive, Probability, Settings
from mbrl.errors import ConfigError
from mbrl.policy_gradient.schedulers.allocation import draw, in_groups, in_range, successes, tally
from mbrl.policy_gradient.schedulers.scheduler import Outcome, Pool, Request, Scheduler


@dataclass(frozen=True)
class DifficultyTargetedConfig(Settings):
    references: Count = 16  # prompts that are answered to predict the others
    every: Count = 2  # rounds between two sets of references
    sharpness: NonNegative = 20.0  # of attention: factor on the cosine of features
    target: Probability = 0.5  # predicted success that is wanted
    temperature: Positive = 0.05  # of drawing prompts by their distance from the target
    fresh: Probability = 0.5  # share of a replayed round that is rolled out anew


class DifficultyTargeted(Scheduler):
    """Every `every` rounds a random set of references is rolled out first; a prompt's predicted
    success is the mean of theirs, weighted by attention. Prompts are drawn by exp(-|predicted -
    target| / temperature), none twice. References are for measuring: `keep` leaves them out.

    Rollout replay is the trainer's; after the first round, `fresh_share` of a round's groups are
    asked for, and the trainer fills up from its latest ones (with their behaviour log-probs).

    "Improving Data Efficiency for LLM Reinforcement Fine-tuning Through Difficulty-targeted Online
    Data Selection and Rollout Replay", arXiv 2506.05316.
    """

    beliefs = ("predicted", "references")
    varying = ("references",)

    def __init__(
        self,
        pool: Pool,
        budget: int,
        group: int,
        config: DifficultyTargetedConfig = DifficultyTargetedConfig(),
    ) -> None:
        super().__init__(pool, budget, group)
        pool.needs("features")
        if not 1 <= config.references < pool.size or config.references * group >= budget:
            most = min(pool.size - 1, (budget - 1) // group)
            raise ConfigError(
                f"{config.references} references of {group} rollouts, a pool of {pool.size} and a "
                f"budget of {budget}; give from 1 to {most} references"
            )
        if config.every < 1 or config.temperature <= 0:
            raise ConfigError(
                f"every {config.every}, temperature {config.temperature:g}; give at least 1 round "
                "and a temperature above 0"
            )
        in_range("fresh", config.fresh, 1e-9, 1)
        assert pool.features is not None
        self.config = config
        self.features = torch.nn.functional.normalize(pool.features.double(), dim=1)
        self.predicted = torch.full((pool.size,), config.target, dtype=torch.float64)
        self.references = torch.zeros(0, dtype=torch.int64)

    @property
    def fresh_share(self) -> float:
        """Of this round's groups, what is rolled out anew."""
        return 1.0 if self.rounds == 0 else self.config.fresh

    def request(self, generator: torch.Generator) -> Request:
        if self.rounds % self.config.every:
            self.references = torch.zeros(0, dtype=torch.int64)
            return self.selection(self.places, generator)
        mixed = torch.randperm(self.pool.size, generator=generator)
        self.references = mixed[: self.config.references]
        return Request.of(self.references, self.group)

    def selection(self, places: int, generator: torch.Generator) -> Request:
        """Prompts for `fresh_share` of `places` groups, references left out."""
        distance = (self.predicted - self.config.target).abs()
        weight = torch.exp(-(distance - distance.min()) / self.config.temperature)
        weight = weight.clamp_min(1e-300)  # above that of references
        weight[self.references] = 0
        wanted = max(1, round(self.fresh_share * places))
        ids = draw(weight, min(wanted, self.pool.size - len(self.references)), generator)
        return in_groups(ids, wanted, self.group)

    def more(self, so_far: Outcome, generator: torch.Generator) -> Request | None:
        only_references = torch.isin(so_far.prompts, self.references).all()
        if not len(self.references) or not only_references:
            return None
        counted = tally(successes(so_far), self.pool.size)
        self.predicted = attention(
            self.features,
            self.features[self.references],
            counted.mean[self.references],
            self.config.sharpness,
        )
        places = (self.budget - len(so_far.prompts)) // self.group
        return self.selection(places, generator) if places else None

    def keep(self, outcome: Outcome, generator: torch.Generator) -> Tensor:
        return ~torch.isin(outcome.prompts, self.references)


def attention(query: Tensor, known: Tensor, values: Tensor, sharpness: float) -> Tensor:
    """[N]: means of `values` [K] weighted by softmax(sharpness <query, known>), for `query` [N, D]
    and `known` [K, D]."""
    return torch.softmax(sharpness * query @ known.T, 1) @ values
