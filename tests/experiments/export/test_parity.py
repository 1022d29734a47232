"""The observations on which files are compared with the policy."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.export.parity import as_good, observations
from mbrl.types import Spec


def test_rows_of_large_data_are_evenly_spread() -> None:
    """Beyond 2^24 rows 32-bit numbers name rows that are not there."""
    count = 2**24 + 4
    obs = torch.zeros(1, 1).expand(count, 1)
    parts: Any = SimpleNamespace(spec=Spec("x", 1, 1, action_low=(-1.0,), action_high=(1.0,)))
    data: Any = SimpleNamespace(transitions=SimpleNamespace(obs=obs))
    assert observations(parts, data).shape == (1000, 1)
    data.transitions.obs = torch.arange(1000.0)[:, None]
    assert torch.equal(observations(parts, data)[::2, 0], torch.arange(0.0, 1000.0, 2.0))


@pytest.mark.parametrize(("lead", "wanted"), [(0.0, -0.5), (1e-6, -0.5), (1e-4, 0.5)])
def test_either_of_two_equal_options_will_do(lead: float, wanted: float) -> None:
    """Files of EXPO were refused for a single row whose options differ in value by rounding. A
    third option, which is worse, will not."""

    def options(obs: Tensor) -> tuple[Tensor, Tensor]:
        actions = torch.tensor([0.5, -0.5, -0.3])[:, None, None].expand(3, len(obs), 1)
        return actions, torch.tensor([-2.0 + lead, -2.0, -3.0])[:, None].expand(3, len(obs))

    policy = SimpleNamespace(greedy_options=options, scale=SimpleNamespace(to_task=lambda x: 2 * x))
    for given in (-1.0, -0.99999999, -0.6):
        taken = as_good(policy, torch.zeros(4, 2), torch.full((4, 1), given))
        assert taken.flatten().tolist() == [2 * wanted] * 4
