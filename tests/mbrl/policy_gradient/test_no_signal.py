"""What a trainer notes of the signals that a run learns from."""

from dataclasses import dataclass, replace
from typing import Self

import pytest
import torch
from torch import Tensor, nn

from mbrl.policy_gradient import recipe
from mbrl.policy_gradient.measure import Measure
from mbrl.policy_gradient.trainer import Trainer
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Round:
    data: Trajectories

    def select(self, rows: Tensor) -> Self:
        return replace(self, data=self.data.select(rows))

    def compact(self) -> Self:
        return self


def trainer(name: str) -> Trainer[Round]:
    generator = torch.Generator().manual_seed(0)
    return Trainer(
        recipe(name),
        nn.Linear(1, 1),
        [],
        lambda policy, one: torch.zeros_like(one.data.reward),
        generator,
        epochs=1,
        minibatches=1,
    )


def round_of(reward: list[float], **signals: list[float]) -> Round:
    """Answers of one step, two prompts with two answers each."""
    rows, last = torch.tensor(reward)[:, None], torch.ones(4, 1, dtype=torch.bool)
    obs = torch.zeros(4, 1, 1)
    return Round(
        Trajectories(
            obs,
            torch.zeros(4, 1, dtype=torch.int64),
            rows,
            obs,
            last,
            ~last,
            last,
            log_probs={"old": torch.zeros(4, 1)},
            groups={"prompt": torch.tensor([0, 0, 1, 1])[:, None]},
            signals={n: torch.tensor(v)[:, None] for n, v in signals.items()},
        )
    )


def test_advantages_that_are_all_zero_are_no_signal() -> None:
    made = trainer("grpo")
    made.estimated(round_of([1.0, 1.0, 0.0, 0.0]))
    assert made.silent == ["advantage"]
    again = trainer("grpo")
    again.load_state_dict(made.state_dict())
    assert again.silent == ["advantage"]
    again.estimated(round_of([1.0, 0.0, 0.0, 0.0]))
    assert again.silent == []
    again.estimated(round_of([1.0, 1.0, 0.0, 0.0]))
    assert again.silent == []  # it had one before
    assert float(again.updated()["rollout/no_signal"]) == 0.0


@pytest.mark.parametrize("later", [0.5, 0.25])
def test_a_signal_that_never_varies_is_none(later: float) -> None:
    """From round to round, too: one number a round that changes is a signal."""
    made = trainer("urpa")
    for level in (0.5, later):
        made.estimated(round_of([1.0, 0.0, 0.0, 1.0], consistency_reward=[level] * 4))
    assert made.silent == (["advantage", "consistency_reward"] if later == 0.5 else ["advantage"])
    made.estimated(round_of([1.0, 0.0, 0.0, 1.0], consistency_reward=[0.5, 1.0, 0.0, 0.0]))
    assert made.silent == []


def test_a_mechanism_that_does_nothing_is_no_signal() -> None:
    """Until each of a recipe's measures has done something in one and the same round."""
    made = trainer("grpo")
    made.measures = [Measure(None), Measure(None), Measure(None)]
    varied = round_of([1.0, 0.0, 0.0, 1.0])
    made.estimated(varied)
    assert made.silent == []  # none of them could fail to act
    made.measures[0].acts, made.measures[1].acts = 0.0, 0.5
    made.estimated(varied)
    assert made.silent == ["mechanism"]
    assert float(made.updated()["rollout/no_signal"]) == 1.0
    again = trainer("grpo")
    again.load_state_dict(made.state_dict())
    assert again.silent == ["mechanism"]
    made.measures[0].acts = 0.25
    made.estimated(varied)
    assert made.silent == []
    made.measures[0].acts = 0.0
    made.estimated(varied)
    assert made.silent == []  # it has acted once
