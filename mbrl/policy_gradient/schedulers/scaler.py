"""SCALER: every environment's difficulty follows the policy's accuracy, in an active set of
environments that is renewed."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.config import Count, NonNegative, Probability, Settings
from mbrl.errors import ConfigError
from mbrl.policy_gradient.schedulers.allocation import successes
from mbrl.policy_gradient.schedulers.scheduler import Outcome, Pool, Request, Scheduler


@dataclass(frozen=True)
class SCALERConfig(Settings):
    target: Probability = 0.5  # accuracy that is wanted
    gain: NonNegative = 2.0  # levels per unit of accuracy above the target
    cap: NonNegative = 1.0  # largest change of the level in a round
    active: Count = 8  # environments in the active set; fewer where there are fewer
    history: Count = 50  # rounds that an environment's trend is taken over
    failures: Count = 5  # rounds in a row without a success after which it is replaced
    saturated: Count = 5  # rounds in a row at the highest level after which it is replaced


class SCALER(Scheduler):
    """Each environment (a family of the pool) has a real-valued difficulty d, split between the two
    levels next to it; after a round d += clamp(gain (accuracy - target), -cap, cap), the accuracy
    interpolated between the levels. In the active set, one without success, one at its highest
    level, or one whose difficulty stopped rising over `history` rounds makes place for another.

    `acts`: by how much difficulties moved, mean over environments.

    The pool needs `levels` and `families`, and a prompt of every level from 0 to the highest of its
    family. "SCALER: Synthetic Scalable Adaptive Learning Environment for Reasoning", arXiv
    2601.04809, as in the authors' code.
    """

    beliefs = ("difficulty", "window", "trace", "zeros", "tops")

    def __init__(
        self, pool: Pool, budget: int, group: int, config: SCALERConfig = SCALERConfig()
    ) -> None:
        super().__init__(pool, budget, group)
        pool.needs("levels", "families")
        counts = (config.active, config.history - 2, config.failures, config.saturated)
        if config.gain <= 0 or config.cap <= 0 or min(counts) < 1:
            raise ConfigError(
                f"{config}; give gain and cap above 0, history of at least 3, the others at least 1"
            )
        assert pool.levels is not None and pool.families is not None
        self.config, self.levels, self.families = config, pool.levels, pool.families
        count = int(self.families.max()) + 1
        self.highest = torch.zeros(count, dtype=torch.int64).scatter_reduce(
            0, self.families, self.levels, "amax"
        )
        for family in range(count):
            there = self.levels[self.families == family].unique().tolist()
            if there != list(range(int(self.highest[family]) + 1)):
                raise ConfigError(
                    f"family {family} has levels {there}; number families from 0, and give each a "
                    "prompt of every level from 0 up"
                )
        size = min(config.active, count, self.places)
        self.difficulty = torch.zeros(count, dtype=torch.float64)
        self.window = torch.arange(size)  # drawn in the first round
        self.trace = torch.full((count, config.history), torch.nan, dtype=torch.float64)
        self.zeros = torch.zeros(count, dtype=torch.int64)
        self.tops = torch.zeros(count, dtype=torch.int64)

    def request(self, generator: torch.Generator) -> Request:
        count = len(self.difficulty)
        if self.rounds == 0:
            self.window = torch.randperm(count, generator=generator)[: len(self.window)]
        shares = [
            self.places // len(self.window) + (i < self.places % len(self.window))
            for i in range(len(self.window))
        ]
        chosen = []
        for family, share in zip(self.window.tolist(), shares, strict=True):
            d = float(self.difficulty[family])
            upper = round(share * (d - math.floor(d)))
            for level, places in ((math.ceil(d), upper), (math.floor(d), share - upper)):
                cell = ((self.families == family) & (self.levels == level)).nonzero().flatten()
                mixed = cell[torch.randperm(len(cell), generator=generator)]
                chosen.append(mixed[torch.arange(places) % len(cell)])
        return Request.of(torch.cat(chosen), self.group)

    def observe(self, outcome: Outcome, generator: torch.Generator) -> None:
        family, before = self.families[successes(outcome).prompts], self.difficulty.clone()
        for f in family.unique().tolist():
            mine = family == f
            self.learn(f, self.levels[outcome.prompts[mine]], outcome.rewards[mine].double())
        self.acts = float((self.difficulty - before).abs().mean())
        self.replace(generator)
        super().observe(outcome, generator)

    def learn(self, family: int, levels: Tensor, rewards: Tensor) -> None:
        d = float(self.difficulty[family])
        means = {
            level: float(rewards[levels == level].mean()) for level in levels.unique().tolist()
        }
        accuracy = next(iter(means.values()))
        if len(means) == 2:
            accuracy = sum((1 - abs(d - level)) * mean for level, mean in means.items())
        step = self.config.gain * (accuracy - self.config.target)
        step = max(-self.config.cap, min(self.config.cap, step))
        self.trace[family] = torch.cat([self.trace[family, 1:], torch.tensor([d]).double()])
        self.zeros[family] = self.zeros[family] + 1 if float(rewards.sum()) == 0 else 0
        top = d >= float(self.highest[family]) - 1e-7
        self.tops[family] = self.tops[family] + 1 if top else 0
        self.difficulty[family] = max(0.0, min(float(self.highest[family]), d + step))

    def worn(self, family: int) -> bool:
        """Whether an environment has nothing to teach at present."""
        if self.zeros[family] >= self.config.failures or self.tops[family] >= self.config.saturated:
            return True
        trace = self.trace[family]
        if bool(trace.isnan().any()):
            return False
        time = torch.arange(len(trace), dtype=torch.float64)
        return float(((time - time.mean()) * (trace - trace.mean())).sum()) <= 0

    def replace(self, generator: torch.Generator) -> None:
        for place, family in enumerate(self.window.tolist()):
            free = torch.ones(len(self.difficulty), dtype=torch.bool)
            free[self.window] = False
            others = free.nonzero().flatten()
            if not self.worn(family) or not len(others):
                continue
            self.trace[family], self.zeros[family], self.tops[family] = torch.nan, 0, 0
            pick = int(torch.randint(len(others), (), generator=generator))
            self.window[place] = others[pick]
