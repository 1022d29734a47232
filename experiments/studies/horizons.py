"""What the length of imagined futures does: a NEUBAY run on a dataset, how far its rollouts went,
and its values against what its policy earns in the task."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithms.neubay import NEUBAY
from experiments import figures, history
from experiments.studies import Outcome, learned
from mbrl import data, tasks
from mbrl.errors import ConfigError
from mbrl.records import Evaluations
from mbrl.types import Trajectories
from world_models import RolloutConfig, TrueDynamics, rollout

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "data": "swingup/medium-replay",
    "algorithm": "neubay",
    "config": {},  # settings over the preset's
    "steps": 5000,  # updates
    "episodes": 100,  # fixed starts of the last evaluation
}
HISTORIES = 100  # that values are compared at
LEFT = 0.05  # discount after which a compared return ends, if the task does not first


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train, then compare at random histories of the data.

    `length` is the median length of rollouts over the last third of the collections, `threshold`
    the disagreement that stopped them; `q` the mean value at the histories, `earned` the mean
    discounted return from there in the task, `imagined` that in the model without a threshold, all
    with the entropy bonus; `gap` is `q` less `earned`.
    """
    if settings["algorithm"] != "neubay":
        raise ConfigError(f"algorithm is {settings['algorithm']!r}; the study needs neubay")
    run, dataset = folder / "run", data.load(settings["data"])
    often = min(20, settings["steps"] // 20)
    agent: NEUBAY = learned.agent(settings, learned.config(settings), seed, run, often)
    agent.prepare(dataset, lambda metrics: None)
    evaluations = Evaluations.load(run / "evaluations.npz")
    scores = [float(dataset.spec.score(r.mean())) for r in evaluations.returns]
    logged = history.metrics(run)
    lengths = logged["rollout/length_median"][1]
    entropy = float(logged["actor/entropy"][1][-1])
    values = values_at_histories(agent, entropy)
    return Outcome(
        values
        | {
            "score": scores[-1],
            "length": float(np.median(lengths[-max(1, len(lengths) // 3) :])),
            "threshold": float(logged["rollout/threshold"][1][-1]),
        },
        {"step": [float(s) for s in evaluations.steps], "score": scores},
    )


@torch.no_grad()
def values_at_histories(agent: NEUBAY, entropy: float) -> dict[str, float]:
    """Means over `HISTORIES` random histories of the data; `entropy` is the policy's, a step."""
    agent.generator.manual_seed(0)
    starts, times, limits = agent._histories(HISTORIES)
    some = limits > 0
    starts, times, limits = starts[some], times[some], limits[some]
    assert agent.recorded is not None
    obs = agent.recorded.rows[starts + times, : agent.spec.obs_dim]
    carried = agent.carried(starts, times)
    action, _ = agent.policy.proceed(obs, carried, agent.generator, deterministic=False)
    q = _values(agent, starts, times, agent.policy.scale.to_unit(action))
    gamma = agent.config.gamma
    horizon = min(int(limits.max()), int(np.ceil(np.log(LEFT) / np.log(gamma))))
    bonus = float(agent.learner.log_alpha.exp()) * entropy
    truth = TrueDynamics(tasks.make_for(agent.spec))
    earned = {}
    for name, model in (("earned", truth), ("imagined", agent.model)):
        config = RolloutConfig(horizon=horizon, member="per_rollout")
        found = rollout(
            model, agent.policy, obs, config, agent.generator, memory=carried, limits=limits
        )
        earned[name] = float(discounted(found, gamma, bonus).mean())
    mean = float(q.mean())
    return {"q": mean, **earned, "gap": mean - earned["earned"]}


def _values(agent: NEUBAY, starts: Tensor, times: Tensor, action: Tensor) -> Tensor:
    """Mean over heads of Q(history, action) [B], each history run through the critic's encoder."""
    assert agent.recorded is not None
    values = []
    for start, time, chosen in zip(starts.tolist(), times.tolist(), action, strict=True):
        index = torch.arange(start, start + time + 1)
        tape = agent.recorded.tape(index, index == start)
        features = agent.learner.critic.encoder(tape.x, tape.first)[-1:]
        values.append(agent.learner.critic.values(features, chosen[None]).mean())
    return torch.stack(values)


def discounted(found: Trajectories, gamma: float, bonus: float) -> Tensor:
    """Discounted reward [B] of trajectories, with `bonus` at every step but the first."""
    weight = gamma ** torch.arange(found.mask.shape[1], dtype=torch.double)
    extra = torch.full_like(weight, bonus)
    extra[0] = 0.0
    return (weight * (found.reward.double() + extra) * found.mask).sum(1)


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, mark: str) -> list[Path]:
    """Score against updates; and length, gap and score of every row beside each other."""
    panels = figures.by_label(rows, lambda r: r["curves"]["step"], lambda r: r["curves"]["score"])
    points: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for label, records in rows.items():
        panel, line = label.split(", ", 1)
        length = np.array([r["values"]["length"] for r in records])
        for name in ("gap", "score"):
            values = np.array([r["values"][name] for r in records])
            points.setdefault(f"{panel}: {name}", {})[line] = (length, values)
    files = [folder / f"horizon-scores{mark}.png", folder / f"horizon-gaps{mark}.png"]
    figures.curves(panels, "updates", "normalised score", files[0], top=100)
    figures.scatter(points, "median length of rollouts", "value", files[1])
    return files
