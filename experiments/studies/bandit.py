"""The two-armed bandit of "Long-Horizon Model-Based Offline Reinforcement Learning Without
Conservatism" (NEUBAY, arXiv 2512.04341): data of one arm, an ensemble of a hundred fitted models
of the other, an agent trained in the ensemble with and without a penalty, and Bayesian agents."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.reports import figures
from experiments.studies import Outcome
from experiments.studies.bandit_agent import AgentConfig, Learner
from experiments.studies.bandit_oracle import KINDS, Oracle
from experiments.studies.bandit_world import (
    SEEN,
    Act,
    Members,
    RewardConfig,
    fitted_members,
    play,
    real_arms,
)
from mbrl import checkpoint
from mbrl import config as configs
from mbrl.config import Count, Several
from mbrl.errors import unknown_name

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "agent": "learned",  # or one that plays by Bayes' rule: thompson, lookahead
    "penalty": 0.0,  # c: imagined rewards lose c times the deviation of the members' means
    "initialisation": RewardConfig.initialisation,  # of the reward models: torch or flax
    "members": RewardConfig.members,  # reward models that are fitted
    "kept": RewardConfig.kept,  # and used, an imagined episode in each at a time
    "epochs": RewardConfig.epochs,  # of the fit, at most
    "updates": AgentConfig.updates,
    "pulls": AgentConfig.pulls,  # of an episode
    "encoder_lr": AgentConfig.encoder_lr,
    "width": AgentConfig.width,  # of the learner's layers
    "states": AgentConfig.states,  # of each of its recurrent layers
    "tape": AgentConfig.tape,  # steps of a batch
    "episodes": 20,  # of a test, for each success probability of the unseen arm
    "looks": 20,  # tests during training; the last one counts
    "samples": 64,  # simulated futures of each plan of the lookahead
}
AGENTS = ("learned", *KINDS)
CHANCES = (0.01, 0.15, 0.3, 0.45, 0.55, 0.7, 0.85, 0.99)  # of arm 1 in the tests
# Read off assets/bandit.png of the authors' repository by eye: about two digits.
PUBLISHED = {0.01: 0.48, 0.3: 0.44, 0.55: 0.545, 0.7: 0.69, 0.99: 0.985}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Fit the members, train or build the agent, and test it on real Bernoulli arms.

    For each success probability p of arm 1, `return/p` is the mean reward of a pull and `best/p`
    the share of pulls of the better arm; `regret` is |p - 0.5| times the share of pulls of the
    worse one, mean over all p: what the choice of arms loses against knowing the better one,
    without the rewards' noise. `imagined` is what greedy pulls pay in the members, mean over an
    episode in each and without the rewards' noise. Of the prior: `unseen` and `spread` are mean and
    standard deviation of the members' means of arm 1, `better` is the share of members in which it
    pays more than arm 0, penalty included."""
    check(settings)
    names = ("members", "kept", "epochs", "initialisation")
    reward = RewardConfig(**{name: settings[name] for name in names})
    members = fitted_members(reward, settings["penalty"], seed)
    if settings["agent"] == "learned":
        evaluations = train(members, settings, seed, folder)
    else:
        oracle = Oracle(members, settings["agent"], settings["pulls"], settings["samples"])
        evaluations = [evaluate(oracle.act, members, settings, seed)]
    values = {name: value for name, value in evaluations[-1].items() if name != "step"}
    curves = {
        name: [metrics[name] for metrics in evaluations]
        for name in evaluations[0]
        if "step" in evaluations[0]
    }
    unseen, worth = members.mean[:, 1], members.worth
    values |= {
        "unseen": float(unseen.mean()),
        "spread": float(unseen.std(correction=0)),
        "better": float((worth[:, 1] > worth[:, 0]).double().mean()),
    }
    return Outcome({name: float(f"{value:.4g}") for name, value in values.items()}, curves)


def check(settings: dict[str, Any]) -> None:
    """Raise `ConfigError` for impossible settings."""
    if settings["agent"] not in AGENTS:
        raise unknown_name("agent", settings["agent"], AGENTS)
    counts = dict.fromkeys(("updates", "pulls", "episodes", "looks", "samples"), Count)
    configs.check(settings, counts | {"tape": Several})  # a target needs the step after


def train(
    members: Members, settings: dict[str, Any], seed: int, folder: Path
) -> list[dict[str, float]]:
    """Alternate between an imagined episode in every member and updates on all episodes, with tests
    in between. After a crash, resume from the last test."""
    names = ("updates", "pulls", "encoder_lr", "width", "states", "tape")
    config = AgentConfig(**{k: settings[k] for k in names})
    learner, evaluations = Learner(config, seed), []
    path = folder / "learner.pt"
    if path.exists():
        state = checkpoint.load(path)
        learner.load_state_dict(state["learner"])
        evaluations = state["looks"]
    kept, pulls = len(members.mean), config.pulls
    every = math.ceil(config.ratio * kept * pulls)  # updates for each round of episodes
    between = max(1, config.updates // settings["looks"])
    while learner.step < config.updates:
        if learner.step % every == 0:
            played = play(learner.exploring(), members.pull, kept, pulls, learner.generator)
            learner.replay.add(played)
        learner.update()
        if learner.step % between == 0 or learner.step == config.updates:
            metrics = evaluate(learner.act, members, settings, seed)
            evaluations.append({"step": float(learner.step), **metrics})
            checkpoint.save(path, {"learner": learner.state_dict(), "looks": evaluations})
    return evaluations


def evaluate(act: Act, members: Members, settings: dict[str, Any], seed: int) -> dict[str, float]:
    """Test the agent on real arms, with the same random numbers at every test of a seed."""
    generator = torch.Generator().manual_seed(seed + 20_000)
    pulls = settings["pulls"]
    chances = torch.tensor(CHANCES).repeat_interleave(settings["episodes"])
    played = play(act, real_arms(chances), len(chances), pulls, generator)
    best = (played.arm == (chances > SEEN)).double().mean(0).view(len(CHANCES), -1).mean(1)
    earned = played.paid.double().mean(0).view(len(CHANCES), -1).mean(1)
    gaps = (torch.tensor(CHANCES, dtype=torch.double) - SEEN).abs()
    imagined = play(act, members.pull, len(members.mean), pulls, generator).arm
    return {
        **{f"return/{p:g}": float(v) for p, v in zip(CHANCES, earned, strict=True)},
        **{f"best/{p:g}": float(v) for p, v in zip(CHANCES, best, strict=True)},
        "regret": float((gaps * (1 - best)).mean()),
        "imagined": float(members.worth.gather(1, imagined.T).double().mean()),
    }


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Mean reward of a pull against the success probability of the unseen arm, a line for each row,
    beside the published curve and the reward of the better arm; and, for learned agents, the same
    during training, a panel for each probability."""
    at = np.array(CHANCES)
    lines = {
        label: figures.curve(
            at, np.array([[r["values"][f"return/{p:g}"] for p in CHANCES] for r in records])
        )
        for label, records in rows.items()
    }
    lines["published without penalty (read off a figure)"] = _bare(
        np.array(list(PUBLISHED)), np.array(list(PUBLISHED.values()))
    )
    lines["the better arm"] = _bare(at, np.maximum(SEEN, at))
    files = [folder / f"returns{suffix}.png"]
    title = {"": lines}
    figures.curves(title, "chance of the arm without data", "mean reward of a pull", files[0])
    learned = {label: records for label, records in rows.items() if records[0]["curves"]}
    if learned:
        panels = {
            f"chance {p:g}": {
                label: figures.curve(
                    np.array(records[0]["curves"]["step"]),
                    np.array([r["curves"][f"return/{p:g}"] for r in records]),
                )
                for label, records in learned.items()
            }
            for p in CHANCES
        }
        files.append(folder / f"learning{suffix}.png")
        figures.curves(panels, "updates", "mean reward of a pull", files[1])
    return files


def _bare(x: np.ndarray, y: np.ndarray) -> figures.Curve:
    """A line without intervals."""
    none = np.full(len(x), np.nan)
    return figures.Curve(x, y, none, none)
