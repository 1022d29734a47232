"""The study of contrast in batches."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import studies
from experiments.studies import contrast
from mbrl import tasks
from mbrl.evaluation import START_SEED, evaluate
from mbrl.types import Dataset
from tests.algorithms.test_algorithms import build
from tests.small import CONFIGS


def test_local_spread_is_that_of_the_cluster() -> None:
    """Two places far apart, 20 rows each: in one all act alike, in the other half act -1 and half
    1, a deviation of 1; across both places it would be more."""
    place = torch.tensor([0.0, 100.0]).repeat_interleave(20)[:, None]
    action = torch.cat([torch.full((20,), 0.3), torch.tensor([-1.0, 1.0]).repeat(10)])[:, None]
    generator = torch.Generator().manual_seed(0)
    assert contrast.local_spread(place, action, generator) == pytest.approx(0.5)


def test_the_gradient_is_the_difference_quotient(pendulum: Dataset) -> None:
    agent = build("edac", pendulum.spec).fit(pendulum, 5, callbacks=[])
    obs, h = pendulum.transitions.obs[:64], 1e-3
    x = torch.cat([obs, contrast._greedy(agent, obs)], -1).double()
    critic = agent.learner.critic.double()
    low = [critic(x + torch.eye(x.shape[1])[-1] * s)[:, :, 0].min(0).values for s in (h, -h)]
    wanted = float(((low[0] - low[1]).detach() / (2 * h)).abs().mean())
    agent.learner.critic.float()
    assert contrast.action_gradient(agent, obs) == pytest.approx(wanted, rel=0.02)


def test_what_is_gained_is_the_return_of_the_task(pendulum: Dataset) -> None:
    """Without a discount, the first action greedy: the returns of an evaluation."""
    agent = build("edac", pendulum.spec).fit(pendulum, 5, callbacks=[])
    task = tasks.make_for(pendulum.spec)
    starts = task.reset(6, torch.Generator().manual_seed(START_SEED))
    with torch.no_grad():
        first = agent.learner.actor(task.observe(starts).float())
        got = contrast._discounted(agent, task, starts, first, 1.0)
    np.testing.assert_allclose(got.numpy(), evaluate(agent, task, 6), rtol=1e-5)


@pytest.mark.parametrize("name", ["ravl", "edac"])
def test_the_study_measures(name: str, tmp_path: Path) -> None:
    chosen = {"algorithm": name, "steps": 20, "episodes": 2, "config": CONFIGS[name]}
    settings = studies.settings_of("contrast", chosen)
    outcome = contrast.measure(settings, 0, tmp_path / name)
    assert set(outcome.values) == {"score", "spread", "other", "gradient", "slope"}
    assert all(np.isfinite(v) for v in outcome.values.values())
    assert 0 < outcome.values["spread"] < 1 and -1 <= outcome.values["slope"] <= 1
    assert outcome.curves["step"][-1] == 20
    rows = {f"pendulum, {name}": [{"curves": outcome.curves}]}
    assert contrast.draw(rows, tmp_path, "")[0].exists()
