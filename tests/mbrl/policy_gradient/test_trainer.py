"""Rounds of a recipe: passes, stages, anchors, rows that are for statistics alone, versions."""

import dataclasses
from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from mbrl.errors import CheckpointError, ConfigError
from mbrl.policy_gradient import RECIPES
from mbrl.policy_gradient.measure import Measure
from mbrl.policy_gradient.trainer import Minibatch, Trainer, check_version, with_fields
from mbrl.types import Trajectories
from tests.mbrl.policy_gradient import cases


@dataclasses.dataclass(frozen=True)
class Round:
    data: Trajectories

    def select(self, rows: Tensor) -> "Round":
        return Round(self.data.select(rows))

    def compact(self) -> "Round":
        return self


class Halves(Measure[Round]):
    """Two stages: the first rows of a round, then the others; targets are positions."""

    def targets(self, rollouts: Round) -> dict[str, Tensor]:
        t = rollouts.data
        return {"row": torch.arange(len(t.mask))[:, None].expand(t.mask.shape).double()}

    def stages(self, batch: Minibatch[Round]) -> list[Minibatch[Round]]:
        rows = torch.arange(len(batch.data.mask))
        return [batch.select(part) for part in rows.tensor_split(2)]


def trainer(name: str = "grpo", measures: tuple[type[Halves], ...] = ()) -> Trainer[Round]:
    policy = nn.Linear(1, 1)
    made: Trainer[Round] = Trainer(
        RECIPES[name],
        policy,
        [kind(None) for kind in measures],
        lambda policy, rollouts: rollouts.data.log_probs["old"] * policy.weight.detach(),
        torch.Generator().manual_seed(0),
        epochs=2,
        minibatches=3,
    )
    return made


def test_every_pass_has_every_sequence_once_stage_by_stage() -> None:
    t, _, _ = cases.batch(0)
    one = trainer(measures=(Halves,))
    updates = one.begin_round(one.estimated(Round(t)))
    assert updates == 2 * 2 * 3
    seen = []
    for left in range(updates, 0, -1):
        assert one.left == left
        seen.append([int(row) for row in one.next_batch().targets["row"][:, 0]])
        one.updated()
    half = (len(t.mask) + 1) // 2
    for stage, rows in ((seen[:6], range(half)), (seen[6:], range(half, len(t.mask)))):
        assert Counter(row for part in stage for row in part) == dict.fromkeys(rows, 2)
    with pytest.raises(ConfigError, match="no round to learn from"):
        one.next_batch()


def test_anchors_are_those_that_the_recipe_compares_with() -> None:
    t, _, _ = cases.batch(1)
    assert trainer("dapo").anchors == {} and set(trainer("grpo").anchors) == {"reference"}
    one = trainer("remix")
    assert set(one.anchors) == {"reference", "previous"}
    with torch.no_grad():
        one.policy.weight.fill_(0.5)  # type: ignore[union-attr]
    first = dict(t.log_probs)
    given = one.estimated(Round(dataclasses.replace(t, log_probs=first))).data.log_probs
    expected = first["old"] * one.anchors["reference"].weight.detach()  # type: ignore[operator]
    torch.testing.assert_close(given["reference"], expected, equal_nan=True)
    weight = one.anchors["previous"].weight
    assert torch.equal(weight, one.policy.weight)  # type: ignore[arg-type]


def test_rows_for_statistics_alone_are_not_trained_on() -> None:
    t, _, _ = cases.batch(2)
    chosen = (torch.arange(len(t.mask)) % 2).double()
    one = trainer()
    batch = one.estimated(with_fields(Round(t), "signals", trained=chosen))
    one.begin_round(batch)
    assert one.data is not None
    assert torch.equal(one.data.estimate.advantage, batch.estimate.advantage[chosen.bool()])


def test_a_checkpoint_of_an_earlier_formula_is_refused() -> None:
    check_version(RECIPES["grpo"], {})
    check_version(RECIPES["mc_grpo"], {"recipe_version": 2})
    with pytest.raises(CheckpointError, match="version 1 of recipe mc_grpo"):
        check_version(RECIPES["mc_grpo"], {})
