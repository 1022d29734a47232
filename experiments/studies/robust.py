"""DR-RPO in a small linear decision process whose dynamics shift towards failure at test time."""

from pathlib import Path
from typing import Any

import numpy as np

from algorithms.dr_rpo import DRRPO, DRRPOConfig, returns, robust_values
from experiments.reports import figures
from experiments.studies import Outcome
from mbrl import config as configs

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "config": {},  # of DR-RPO, over its defaults
    "learn": True,  # else the reference policy, uniform, is evaluated
    "episodes": 500,  # of online learning in the dynamics without a shift
    "horizon": 8,
    "shifts": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6],  # of the curve: shares that move to failure
}
MEASURED = {"nominal": 0.0, "shift_02": 0.2, "shift_04": 0.4}  # shifts that values are of
BASE, FAILED = 0, 3  # of the states base, middle, top and failed
FAILING = 0.02  # without a shift
# Where each of the two actions, to collect and to invest, leads from each state.
LEADS = np.array([[0, 1], [2, 2], [2, 2], [3, 3]])
REWARD = np.array([[0.45, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])


def world(horizon: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features [S, A, d], factors [H, d, S] and reward [S, A]. At the base one can collect 0.45 a
    step, or go by the middle to the top, where a step pays 1; a factor leads to each state."""
    factors = shifted(np.eye(len(LEADS)), FAILING)
    features = np.eye(len(LEADS))[LEADS]
    return features, np.repeat(factors[None], horizon, 0), REWARD


def shifted(factors: np.ndarray, share: float) -> np.ndarray:
    """`factors` [..., S] with the `share` of each moved to failure."""
    moved: np.ndarray = (1 - share) * factors + share * np.eye(len(LEADS))[FAILED]
    return moved


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Learn online for `episodes`, then act where every factor has moved towards failure.

    Expected returns of the last policy: `nominal` without a shift, `shift_02` and `shift_04` with a
    fifth and two fifths of every factor moved. `invests`: the probability that it goes up at the
    first step; `above`: how much the learned robust value at the start exceeds that of the known
    factors.
    """
    features, factors, reward = world(settings["horizon"])
    given = {"horizon": settings["horizon"], **settings["config"]}
    config = configs.from_dict(DRRPOConfig, given)
    agent = DRRPO(features, reward, config)
    rng = np.random.default_rng(seed)
    policy, above = np.repeat(agent.reference[None], config.horizon, 0), float("nan")
    if settings["learn"]:
        for _ in range(settings["episodes"]):
            policy, _ = agent.plan()
            episode(agent, policy, features, factors, rng)
        policy, values = agent.plan()
        _, best = robust_values(features, factors, reward, config, agent.reference)
        above = float(values[0, BASE] - best[0, BASE])

    def earned(share: float) -> float:
        return returns(policy, features, shifted(factors, share), reward, BASE)

    shifts = settings["shifts"]
    return Outcome(
        {name: earned(share) for name, share in MEASURED.items()}
        | {"invests": float(policy[0, BASE, 1]), "above": above},
        {"shift": list(shifts), "return": [earned(share) for share in shifts]},
    )


def episode(
    agent: DRRPO,
    policy: np.ndarray,
    features: np.ndarray,
    factors: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """One episode of `policy` [H, S, A] from the base, which the agent observes."""
    state = BASE
    for step in range(len(policy)):
        action = int(rng.choice(policy.shape[2], p=policy[step, state]))
        reached = int(rng.choice(len(LEADS), p=features[state, action] @ factors[step]))
        agent.observe(step, state, action, reached)
        state = reached


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Return against the shift, over that of learning with radius 0 where it is there."""
    plain = next((r for label, r in rows.items() if label.endswith("radius 0")), None)
    over, unit = np.float64(1.0), "expected return"
    if plain is not None:
        over = np.mean([record["curves"]["return"] for record in plain], 0)
        unit = "return over that of radius 0"
    panels = figures.by_label(
        rows, lambda r: r["curves"]["shift"], lambda r: np.array(r["curves"]["return"]) / over
    )
    path = folder / f"robust{suffix}.png"
    figures.curves(panels, "share moved to failure", unit, path)
    return [path]
