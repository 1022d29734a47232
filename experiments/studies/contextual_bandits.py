"""Contextual bandit learners on problems whose expected rewards are known: labels as bandits, a
linear problem, a payment router with late feedback."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithms.bandits import BANDITS, BanditLearner, DelayedFeedback, Rows
from algorithms.bandits.problems import BanditRounds, Labels, Linear, PaymentRouter, Problem
from algorithms.bandits.squarecb import regret_bound
from experiments.reports import figures
from experiments.studies import Outcome, label_sets
from mbrl import checkpoint
from mbrl import config as configs
from mbrl.errors import ConfigError, unknown_name

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "problem": "digits",  # payments, linear or a set of label_sets
    "algorithm": "squarecb",  # of algorithms.bandits
    "config": {},  # over its defaults
    "rounds": 0,  # 0: one pass over a set of labels
    "most_rounds": 3000,  # of a pass
    "delay": 0,  # rounds until the outcome of a decision is known
    "batch": 1,  # outcomes that are handed over at once
    "theorem_gamma": False,  # SquareCB's constant gamma of Theorem 1, for ridge on `linear`
}
POINTS = 24  # of a curve
SAVE_EVERY = 2000  # rounds


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Over all rounds: `loss`, the mean of 1 - reward; `regret`, the sum over rounds of the best
    expected reward less that of the decision; `late`, its mean over the last fifth of the rounds;
    `slope`, that of log regret on log rounds from a sixteenth of the rounds on; `regression`, the
    oracle's regret of squared loss, and with the theorem's gamma `bound`, that of SquareCB's
    Theorem 1 with `regression_bound`. With batches of
    feedback `swing` is the mean absolute change of the mean expected reward, in per cent of the
    best one, from the decisions between two hand-overs to the next, over the second half."""
    problem, rounds = prepare(settings, seed)
    require_theorem(settings, problem)
    learner = make_learner(settings, problem, len(rounds.context), seed)
    feedback = DelayedFeedback(settings["delay"], settings["batch"])
    played = play(learner, rounds, feedback, seed, folder / "learner.pt")
    action, reward, predicted = played
    expected = rounds.expected.double()
    mine = expected.gather(1, action[:, None])[:, 0]
    gap = expected.max(1).values - mine
    regret = gap.cumsum(0).numpy()
    total = len(regret)
    regression = float(((predicted - reward) ** 2 - (mine - reward) ** 2).sum())
    values = {
        "loss": 1 - float(reward.mean()),
        "regret": float(regret[-1]),
        "late": float(gap[-max(1, total // 5) :].mean()),
        "slope": slope(regret),
        "regression": regression,
        "bound": regret_bound(problem.actions, total, regression_bound(problem, total))
        if settings["theorem_gamma"]
        else float("nan"),
        "swing": swing(mine, expected.max(1).values, settings["batch"]),
    }
    at = np.unique(np.linspace(0, total - 1, POINTS).round().astype(int))
    curves = {"round": (at + 1).tolist(), "regret": regret[at].round(4).tolist()}
    if settings["batch"] > 1:
        curves |= {"generation": generations(mine, expected.max(1).values, settings["batch"])}
    return Outcome({k: float(f"{v:.6g}") for k, v in values.items()}, curves)


def prepare(settings: dict[str, Any], seed: int) -> tuple[Problem, BanditRounds]:
    """The problem and the rounds of this seed, the same for all learners."""
    name, count = settings["problem"], settings["rounds"]
    problem: Problem
    if name == "payments":
        problem = PaymentRouter()
    elif name == "linear":
        problem = Linear()
    elif name in label_sets.SETS:
        features, label = label_sets.read(name)
        problem = Labels(torch.from_numpy(features), torch.from_numpy(label))
        count = count or min(len(label), settings["most_rounds"])
    else:
        raise unknown_name("problem", name, ("payments", "linear", *label_sets.SETS))
    if count < 1:
        raise ConfigError(f"rounds is {count}; {name!r} needs at least 1")
    return problem, problem.draw(count, torch.Generator().manual_seed(1000 + seed))


def require_theorem(settings: dict[str, Any], problem: Problem) -> None:
    """Raise `ConfigError` where the theorem's gamma and bound are asked for and do not hold."""
    kind = settings["config"].get("oracle", {}).get("kind")
    holds = isinstance(problem, Linear) and settings["algorithm"] == "squarecb" and kind == "ridge"
    if settings["theorem_gamma"] and not holds:
        raise ConfigError(
            f"theorem_gamma is true with problem {settings['problem']!r}, algorithm "
            f"{settings['algorithm']!r} and an oracle of kind {kind!r}; its bound is that of "
            "squarecb with ridge on 'linear'"
        )


def make_learner(
    settings: dict[str, Any], problem: Problem, rounds: int, seed: int
) -> BanditLearner:
    """The learner that the settings name."""
    name, values = settings["algorithm"], settings["config"]
    if name not in BANDITS:
        raise unknown_name("algorithm", name, BANDITS)
    cls, kind = BANDITS[name]
    if settings["theorem_gamma"]:
        values = values | {"gamma_scale": theorem_gamma(problem, rounds), "gamma_exponent": 0.0}
    learner: BanditLearner = cls(
        problem.context_size, problem.actions, configs.from_dict(kind, values), seed
    )
    return learner


def regression_bound(problem: Problem, rounds: int) -> float:
    """Of the expected regret R of online ridge regression for each action, where the linear model
    holds, rewards have a variance of 1/4 at most, |x|^2 <= 2 with the constant, ridge 1, parameters
    of squared norm 1/2 at most: K (1/2 + (D + 1) / 2 log(1 + 2 T / (K (D + 1)))), by the lemma of
    the elliptical potential."""
    k, d = problem.actions, problem.context_size + 1
    return float(k * (0.5 + d / 2 * np.log(1 + 2 * rounds / (k * d))))


def theorem_gamma(problem: Problem, rounds: int, delta: float = 0.05) -> float:
    """sqrt(K T / (R + log(2 / delta)))."""
    regression = regression_bound(problem, rounds) + np.log(2 / delta)
    return float(np.sqrt(problem.actions * rounds / regression))


def play(
    learner: BanditLearner, rounds: BanditRounds, feedback: DelayedFeedback, seed: int, path: Path
) -> tuple[Tensor, Tensor, Tensor]:
    """Decide round by round and learn from what is handed over: actions [T], rewards [T] and the
    rewards that the oracle expected of them [T], in float64. Goes on from `path` after a crash."""
    total = len(rounds.context)
    draws = torch.rand(total, generator=torch.Generator().manual_seed(2000 + seed))
    action = torch.zeros(total, dtype=torch.long)
    reward, predicted = torch.zeros(2, total, dtype=torch.float64)
    first = 0
    if path.exists():
        state = checkpoint.load(path)
        learner.load_state_dict(state["learner"])
        feedback.load_state_dict(state["feedback"])
        first = state["round"]
        for column, known in zip((action, reward, predicted), state["played"], strict=True):
            column[:first] = known
    for t in range(first, total):
        now = rounds.at(t, t + 1)
        a, p, q = learner.decide(now.context)
        r = now.reward(a, draws[t : t + 1])
        action[t], reward[t], predicted[t] = a[0], r[0], q[0]
        rows = feedback.add(Rows(now.context, a, r, p))
        if rows is not None:
            learner.update(rows)
        if (t + 1) % SAVE_EVERY == 0 and t + 1 < total:
            parts = {"learner": learner.state_dict(), "feedback": feedback.state_dict()}
            played = [column[: t + 1].clone() for column in (action, reward, predicted)]
            checkpoint.save(path, {**parts, "played": played, "round": t + 1})
    return action, reward, predicted


def slope(regret: np.ndarray) -> float:
    """Least-squares slope of log regret on log rounds at 32 rounds, evenly spaced in the logarithm
    from a sixteenth of all; NaN where there is no regret by then."""
    total = len(regret)
    at = np.unique(np.geomspace(max(1, total // 16), total, 32).round().astype(int))
    values = regret[at - 1]
    if len(at) < 2 or values[0] <= 0:
        return float("nan")
    return float(np.polyfit(np.log(at), np.log(values), 1)[0])


def generations(mine: Tensor, best: Tensor, batch: int) -> list[float]:
    """Mean expected reward in per cent of the best one, of each `batch` of rounds that is whole."""
    whole = len(mine) // batch * batch
    parts = [x[:whole].view(-1, batch).mean(1) for x in (mine, best)]
    return [round(float(v), 3) for v in 100 * parts[0] / parts[1]]


def swing(mine: Tensor, best: Tensor, batch: int) -> float:
    """The mean absolute change from one generation to the next, over the second half of them."""
    shares = np.array(generations(mine, best, batch)) if batch > 1 else np.zeros(0)
    late = shares[len(shares) // 2 :]
    return float(np.abs(np.diff(late)).mean()) if len(late) > 1 else float("nan")


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Regret against rounds, and where feedback comes in batches the expected reward of each."""
    path = folder / f"regret{suffix}.png"
    lines = figures.by_label(rows, figures.column("round"), figures.column("regret"))
    figures.curves(lines, "rounds", "regret", path)
    files = [path]
    batched = {k: v for k, v in rows.items() if v and "generation" in v[0]["curves"]}
    if batched:
        path = folder / f"generations{suffix}.png"
        lines = figures.by_label(batched, _generation, figures.column("generation"))
        figures.curves(lines, "generation", "expected reward, % of the best", path)
        files.append(path)
    return files


def _generation(record: dict[str, Any]) -> list[float]:
    return list(range(1, len(record["curves"]["generation"]) + 1))


LARGE = ("pendigits", "satimage", "letter")
LEARNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SquareCB": ("squarecb", {}),
    "FastCB": ("fastcb", {}),
    "epsilon-greedy": ("epsilon_greedy", {}),
    "greedy": ("epsilon_greedy", {"epsilon": 0.0}),
    "bagging": ("bagging", {}),
}


def _row(panel: str, name: str, oracle: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """A row of a learner with this oracle; one of squared loss is named."""
    algorithm, values = LEARNERS[name]
    line = f"{name} (squared loss)" if oracle.get("loss") == "squared" else name
    config = values | {"oracle": oracle}
    return {"label": f"{panel}, {line}", "algorithm": algorithm, "config": config, **settings}


def _compared(panel: str, oracle: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    """All learners with a log-loss oracle, then two with squared loss."""
    losses = [(name, "log") for name in LEARNERS]
    losses += [("SquareCB", "squared"), ("epsilon-greedy", "squared")]
    return [_row(panel, name, {"loss": loss, **oracle}, **settings) for name, loss in losses]


def label_rows() -> list[dict[str, Any]]:
    """Every learner on one pass over every small set of labels, with linear oracles."""
    small = [name for name in label_sets.SETS if name not in LARGE]
    return [row for name in small for row in _compared(name, {}, problem=name)]


def large_label_rows() -> list[dict[str, Any]]:
    """The same on 1,500 rows of the large sets."""
    return [row for name in LARGE for row in _compared(name, {}, problem=name, rounds=1500)]


def payment_rows() -> list[dict[str, Any]]:
    """Every learner on payments, whose outcomes come at once, late, or in batches."""
    panels: tuple[tuple[str, dict[str, Any]], ...] = (
        ("at once", {}), ("200 late", {"delay": 200}), ("batches of 500", {"batch": 500}),
    )  # fmt: skip
    common = {"problem": "payments", "rounds": 3000}
    return [r for name, late in panels for r in _compared(name, {"hidden": [32]}, **common, **late)]


def retraining_rows() -> list[dict[str, Any]]:
    """Learning from all batches of payments so far, and anew from the last one alone."""
    return [
        _row(
            f"{memory} of 500",
            name,
            {"loss": "log", "hidden": [32], "memory": memory},
            problem="payments",
            rounds=6000,
            batch=500,
        )
        for memory in ("all", "last")
        for name in ("SquareCB", "epsilon-greedy", "greedy")
    ]


def horizon_rows() -> list[dict[str, Any]]:
    """SquareCB with the theorem's gamma over horizons, and others at the longest one."""
    ridge = {"kind": "ridge"}
    rows = [
        {
            "label": f"theorem, {rounds} rounds",
            "problem": "linear",
            "rounds": rounds,
            "config": {"oracle": ridge},
            "theorem_gamma": True,
        }
        for rounds in (500, 2000, 8000)
    ]
    names = ("SquareCB", "epsilon-greedy")
    return rows + [
        _row("8000 rounds", name, ridge, problem="linear", rounds=8000) for name in names
    ]


ROWS = {
    "labels": label_rows,
    "large_labels": large_label_rows,
    "payments": payment_rows,
    "retraining": retraining_rows,
    "horizons": horizon_rows,
}
