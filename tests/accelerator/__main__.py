"""Algorithms on the device "fake": fitted, asked for actions, saved, read and gone on with; or in a
task on the processor. Prints `ALGORITHM: fault` for each that fails."""

import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from algorithms import ALGORITHMS
from algorithms.evaluation import halted
from algorithms.evaluation.fqe import LOGGED, FQEConfig, evaluate_policies
from experiments.runs import selection
from experiments.settings import build_config
from mbrl.config import from_dict
from mbrl.evaluation import evaluate
from mbrl.tasks import make
from mbrl.training import is_stateful
from mbrl.types import Dataset
from tests.accelerator import begin, build
from tests.conftest import random_dataset
from tests.small import CONFIGS, MODEL, suited, takes
from world_models import EnsembleConfig


def made(name: str, data: Dataset) -> Any:
    config = build_config(name, CONFIGS[name])
    return ALGORITHMS[name][0](data.spec, config, device="fake", seed=0)


def acts(agent: Any, data: Dataset) -> None:
    """Actions come back where observations were, with draws of any generator."""
    obs = data.transitions.obs[:4]
    for deterministic in (True, False):
        for given in (obs, obs.to("fake"), obs.numpy(), obs[0].numpy()):
            for generator in (None, torch.Generator(), torch.Generator("fake")):
                action, _ = agent.act(given, deterministic=deterministic, generator=generator)
                assert not isinstance(given, torch.Tensor) or action.device == given.device


def valued(agent: Any, data: Dataset) -> None:
    """What its policy earns by the log, and in a model of it that ends where the log ends."""
    evaluate_policies([agent, agent.policy, LOGGED], data, FQEConfig(steps=2, hidden=(8,)))
    if not data.spec.discrete and not is_stateful(agent.policy):
        with patch.object(halted, "MODEL", from_dict(EnsembleConfig, MODEL)):
            halted.halted_values([agent.policy], data, data, None, horizon=2, windows=3)


def gone_on(agent: Any, folder: Path) -> Any:
    """The agent from a file, where it was; the file is read on the processor, too."""
    agent.save(folder / "agent.pt")
    type(agent).load(folder / "agent.pt")
    return type(agent).load(folder / "agent.pt", device="fake")


def offline(name: str, folder: Path) -> None:
    task = "Pendulum-v1" if takes(name, "continuous") else "CartPole-v1"
    data = random_dataset(task, 120)
    data = suited(name, data, data)
    agent = made(name, data).fit(data, steps=4, callbacks=[])
    acts(agent, data)
    if not agent.needs_goals and selection.chooses(agent):
        several = random_dataset(task, 450)
        valued(agent, suited(name, several, several))
    gone_on(agent, folder).fit(data, steps=2, callbacks=[])


def online(name: str, folder: Path) -> None:
    task = make("Pendulum-v1" if takes(name, "continuous") else "CartPole-v1")
    if ALGORITHMS[name][0].needs_goals:
        task = make("PointMaze-umaze-v0")
    data = random_dataset(task.spec.task, 120)
    agent = made(name, data)
    if agent.learns_offline:
        agent.fit(data, steps=2, callbacks=[])
    agent.learn(task, 45, callbacks=[])
    for deterministic in (True, False):
        evaluate(agent, task, episodes=2, deterministic=deterministic)
    gone_on(agent, folder).learn(task, 3, callbacks=[])


def main(kind: str, *names: str) -> None:
    warnings.simplefilter("ignore")
    drive = {"offline": offline, "online": online}[kind]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        begin(build(folder))
        for name in names:
            try:
                drive(name, folder)
            except Exception:
                print(f"{name}: {traceback.format_exc(limit=-4)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
