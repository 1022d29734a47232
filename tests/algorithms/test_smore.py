"""SMORe's loss against a loop written from the authors' code, and closed forms of its scores."""

import numpy as np
import pytest
import torch
from scipy import optimize

from algorithms.smore import SMORe, data_half, score_loss
from experiments.settings import build_config
from mbrl.buffer import Batch
from mbrl.types import Spec

D = torch.float64


def authors_loss(score: np.ndarray, v: np.ndarray, form: str, gamma: float) -> float:
    """update_q_smore_stable and update_q_smore: one critic after the other, row by row."""
    neg_r, total, half = -2.0, 0.0, score.shape[1] // 2
    for s in score:
        goal, small, residual = 0.0, 0.0, 0.0
        for k in range(half):
            if form == "stable":
                goal += (s[half + k] + neg_r / (1 - gamma)) ** 2 / half
                small += (1 - gamma) * 1e-4 * s[k] ** 2 / half
                residual += 0.5 * (s[k] - (neg_r + gamma * v[k])) ** 2 / half
            else:
                goal -= s[half + k] / half
                small += 1e-4 * s[k] / half
                residual += 0.5 * (s[k] - gamma * v[k]) ** 2 / half
        total += goal + small + residual
    return total


@pytest.mark.parametrize("form", ["stable", "linear"])
def test_loss_against_the_authors(form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    score = 50 * torch.randn(2, 12, generator=generator, dtype=D)
    v = 50 * torch.randn(12, generator=generator, dtype=D)
    expected = authors_loss(score.numpy(), v.numpy(), form, 0.97)
    got = float(score_loss(score, v, form, -2.0, 1e-4, 0.97))
    assert got == pytest.approx(expected, rel=1e-10)
    # the goal's rows take nothing from next values, and the other rows nothing from the goal's
    moved = v.clone()
    moved[6:] += 100
    assert float(score_loss(score, moved, form, -2.0, 1e-4, 0.97)) == pytest.approx(got)


def test_scores_of_a_chain() -> None:
    """Steps k = 0 (into the goal) to 30 before it, V = S, the step into the goal in no data row:
    S_k = -200 + 400 gamma^k, so 200 at the goal, where nothing pulls scores to 0."""
    gamma, n = 0.99, 31
    score = torch.zeros(1, n, dtype=D, requires_grad=True)
    for _ in range(60):  # fitted values, as targets follow scores
        following = score.detach()[0]

        def loss(x: np.ndarray, following: torch.Tensor = following) -> tuple[float, np.ndarray]:
            s = torch.tensor(x, dtype=D, requires_grad=True)
            data, entering = s[1:], s[:1].expand(n - 1)
            v = torch.cat([following[:-1], following.new_zeros(n - 1)])  # of k - 1 at k
            value = score_loss(torch.cat([data, entering])[None], v, "stable", -2.0, 0.0, gamma)
            return float(value.detach()), torch.autograd.grad(value, s)[0].numpy()

        best = optimize.minimize(loss, score.detach()[0].numpy(), jac=True, tol=1e-14)
        score = torch.tensor(best.x, dtype=D)[None]
    expected = [-200 + 400 * gamma**k for k in range(n)]
    assert score[0].tolist() == pytest.approx(expected, abs=1e-2)


def test_the_linear_form_is_a_ratio_of_densities() -> None:
    """V = 0, the step into the goal a share p of the data: S = 1 / p - 1e-4."""
    for share in (0.25, 0.5):
        rows = int(1 / share)

        def loss(x: float, rows: int = rows) -> float:
            data = torch.zeros(rows, dtype=D)
            data[0] = x
            score = torch.cat([data, torch.full((rows,), x, dtype=D)])[None]
            return float(score_loss(score, torch.zeros(2 * rows, dtype=D), "linear", 0, 1e-4, 0.9))

        best = optimize.minimize_scalar(loss, bounds=(0, 20), method="bounded")
        assert float(best.x) == pytest.approx(1 / share - 1e-4, abs=1e-4)


def test_value_and_policy_learn_from_the_data_half() -> None:
    """Other rows of the second half change neither, as `update_v_smore` and `update_gcrl` cut."""
    spec = Spec("line", 3, 2, None, (-1.0,) * 2, (1.0,) * 2, 10, goal=(2,), achieved=(0,))
    agent = SMORe(spec, build_config("smore", {"hidden": [8], "batch_size": 4}), seed=0)
    generator = torch.Generator().manual_seed(1)
    obs, next_obs = torch.randn(2, 8, 3, generator=generator)
    action = torch.rand(8, 2, generator=generator)
    batch = Batch(obs, action, torch.zeros(8), next_obs, torch.ones(8))
    half = data_half(batch)
    assert torch.equal(half.obs, obs[:4]) and torch.equal(half.action, action[:4])
    before = {n: m.state_dict() for n, m in agent.modules.items()}
    before = {n: {k: v.clone() for k, v in m.items()} for n, m in before.items()}
    other = batch._replace(obs=torch.cat([obs[:4], -obs[4:]]))
    results = []
    for given in (batch, other):
        for name, module in agent.modules.items():
            module.load_state_dict(before[name])
        for optimiser in agent.optimisers.values():
            optimiser.state.clear()
        agent.learner.update(given, 0)
        results.append({n: [p.clone() for p in m.parameters()] for n, m in agent.modules.items()})
    for name, same in (("value", True), ("policy", True), ("critic", False)):
        pairs = zip(results[0][name], results[1][name], strict=True)
        assert all(torch.equal(a, b) for a, b in pairs) == same, name
