"""Stationary distribution correction against the authors' code: google-research/dice_rl at 0adb2e0,
`NeuralDice.train_loss` (estimators/neural_dice.py) with f(x) = x^2 / 2, no reward in its residual
and its TensorFlow functions replaced by PyTorch's of the same names, in float64.

The six rows are two episodes of three. Networks 8 of seeds 150 (its nu is minus that: signs are the
other way round in it) and 151 (its zeta the square); the policy is tanh(s P), P of
layers(152, 4, 2). Without ends the multiplier is 0.2; with an end after the third row it is off,
since theirs is for data without ends.
"""

import pytest
import torch
from torch import Tensor

from algorithms.evaluation.dice import DICE, DICEConfig
from mbrl.types import Dataset, Transitions
from tests.algorithms.beside.inputs import ROWS, SPEC, batch, gradients_of, layers, put


@pytest.mark.parametrize(
    ("ends", "multiplier", "lagrangian", "nu", "zeta"),
    [
        (True, 0.0, -0.0007135843425, -0.3008916555, 0.6915473032),
        (False, 0.2, 0.1679475458, -0.3008666442, 0.7882740963),
    ],
)
def test_lagrangian_and_gradients(
    ends: bool,
    multiplier: float,
    lagrangian: float,
    nu: float,
    zeta: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, place = batch(), torch.arange(ROWS)
    terminated = (place == 2) & ends
    data = Transitions(
        rows.obs, rows.action, rows.reward, rows.next_obs, terminated,
        ((place == 2) | (place == 5)) & ~terminated,
    )  # fmt: skip
    weight = torch.as_tensor(layers(152, 4, 2)[0][0])

    def acts(obs: Tensor, generator: torch.Generator) -> Tensor:
        return torch.tanh(obs @ weight)

    fit = DICE(acts, [Dataset(data, SPEC)], DICEConfig(hidden=(8,), gamma=0.9), "cpu")
    obs = rows.obs
    fit.mean, fit.std = obs.mean(0), obs.std(0, correction=0)
    fit.logged = fit.features(obs, rows.action)[None]
    fit.discount = 0.9 * (~terminated[None]).double()
    for network, seed in ((fit.nu, 150), (fit.zeta, 151)):
        put(network.double(), layers(seed, 6, 8, 1))
    fit.multiplier.data = torch.tensor([multiplier], dtype=torch.float64)
    # Each row once, and the two starts in turn.
    drawn = [(place[None] + 0.5) / ROWS, (place[None] % 2 + 0.5) / 2]
    monkeypatch.setattr(torch, "rand", lambda *shape, **kinds: drawn.pop(0).double())
    metrics = fit.update()
    low, high = fit.optimisers
    got = [
        metrics["dice/lagrangian"].item(),
        gradients_of(fit.nu, low),
        gradients_of(fit.zeta, high),
    ]
    assert got == pytest.approx([lagrangian, nu, zeta], rel=1e-7)
    if not ends:
        moment = 10 * low.state[fit.multiplier]["exp_avg"]
        assert moment.item() == pytest.approx(0.8430877202, rel=1e-7)
