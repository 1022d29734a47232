"""SMORe: Score Models for Offline Goal-Conditioned Reinforcement Learning (arXiv 2311.02013),
compared with the authors' code (hari-sikchi/SMORe at 68e59de: critic_gcrl.py, learner.py).

Differences: goals that are no later state of the row's episode are states of any row; theirs are
those the data were recorded for. The expectile is that of their README and learner; one flag of
their command has 0.1.
"""

from dataclasses import dataclass, field
from typing import Literal

from torch import Generator, Tensor

from algorithms.iql import expectile_loss
from algorithms.learners.dual_value import DualConfig, DualValue, part_of
from algorithms.sources.relabelled import GoalDraws, RelabelledRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Finite, Fraction, NonNegative, Widths
from mbrl.shapes import check_shapes


@dataclass(frozen=True)
class SMOReConfig(DualConfig):
    """Settings of SMORe."""

    form: Literal["stable", "linear"] = "stable"  # of the pull at transitions into goals
    step_score: Finite = -2.0  # c: score of every step, in the stable form
    shrink: NonNegative = 1e-4  # weight of the pull of all scores to 0
    expectile: Fraction = 0.8  # of the value
    goals: GoalDraws = field(default_factory=lambda: GoalDraws(0.0, 0.8, 0.2, geometric=False))
    hidden: Widths = (256, 256, 256)  # widths of all networks


def score_loss(
    score: Tensor, next_value: Tensor, form: str, step_score: float, shrink: float, gamma: float
) -> Tensor:
    """Sum over critics of the loss of `score` [N, 2 B], whose first B rows are the data's and whose
    others enter their goals; `next_value` [2 B] is V(s', g). No end is masked.

    stable: mean_G (S + c / (1 - gamma))^2 + (1 - gamma) shrink mean_D S^2
    + mean_D (S - c - gamma V)^2 / 2; linear: -mean_G S + shrink mean_D S + mean_D (S - gamma V)^2 /
    2, for step score c, data rows D and entering rows G.
    """
    check_shapes(score=(score, "N B"), next_value=(next_value, "B"))
    half = score.shape[1] // 2
    data, entering = score[:, :half], score[:, half:]
    if form == "linear":
        pull = -entering.mean(1) + shrink * data.mean(1)
        target = gamma * next_value[:half]
    else:
        top = -step_score / (1 - gamma)
        pull = (entering - top).square().mean(1)
        pull = pull + (1 - gamma) * shrink * data.square().mean(1)
        target = step_score + gamma * next_value[:half]
    return (pull + 0.5 * (data - target).square().mean(1)).sum()


def data_half(batch: Batch) -> Batch:
    """The rows that were drawn as they come."""
    return part_of(batch, slice(0, len(batch.obs) // 2))


class SMORe(Agent[Batch]):
    """Score models for goals.

    Formula:

        rows         D: rows with a later state of their episode (0.8, uniform) or any state as the
                     goal g; G: as many rows whose next state is their goal
        scores       L = sum_n mean_G (S_n + c / (1 - gamma))^2 + (1 - gamma) 1e-4 mean_D S_n^2
                     + mean_D (S_n - c - gamma V(s', g))^2 / 2, c = -2
                     or ("linear") -mean_G S_n + 1e-4 mean_D S_n + mean_D (S_n - gamma V)^2 / 2
        value        L = mean_D |tau - 1(u < 0)| u^2, u = min_n S'_n(s, a, g) - V(s, g)
        policy       L = -mean_D min(exp(T u), 100) log pi(a|s, g)

    When not to use it: where episodes stay at their goals for long: nothing ends at a goal, and its
    own next value is then part of the score. Scores lie between -200 and 200 at gamma 0.99, so the
    temperature is that of large differences.
    """

    version = 1
    needs_goals = True
    config: SMOReConfig

    def build(self, generator: Generator) -> tuple[DualValue, RelabelledRows]:
        c = self.config
        learner = DualValue(
            self.spec,
            c,
            self.device,
            generator,
            self.value_loss,
            self.critic_loss,
            data_half,
            in_rewards=False,
        )
        source = RelabelledRows(
            self.spec, c.gamma, c.batch_size, self.device, values=c.goals, entering=True
        )
        return learner, source

    def value_loss(self, difference: Tensor) -> Tensor:
        return expectile_loss(difference, self.config.expectile)

    def critic_loss(self, q: Tensor, batch: Batch, next_value: Tensor) -> Tensor:
        c = self.config
        return score_loss(q, next_value, c.form, c.step_score, c.shrink, c.gamma)
