"""Contextual bandits: learners over a regression oracle, delayed feedback, replay of logs."""

from typing import Any

from algorithms.bandits.bagging import Bagging, BaggingConfig
from algorithms.bandits.base import BanditLearner, Rows
from algorithms.bandits.epsilon_greedy import EpsilonGreedy, EpsilonGreedyConfig
from algorithms.bandits.fastcb import FastCB, FastCBConfig
from algorithms.bandits.feedback import DelayedFeedback
from algorithms.bandits.oracle import NetworkOracle, OracleConfig, RidgeOracle
from algorithms.bandits.replay import progressive, rejection
from algorithms.bandits.squarecb import SquareCB, SquareCBConfig

# name -> (class, config class)
BANDITS: dict[str, tuple[Any, Any]] = {
    "squarecb": (SquareCB, SquareCBConfig),
    "fastcb": (FastCB, FastCBConfig),
    "epsilon_greedy": (EpsilonGreedy, EpsilonGreedyConfig),
    "bagging": (Bagging, BaggingConfig),
}

__all__ = [
    "BANDITS",
    "Bagging",
    "BaggingConfig",
    "BanditLearner",
    "DelayedFeedback",
    "EpsilonGreedy",
    "EpsilonGreedyConfig",
    "FastCB",
    "FastCBConfig",
    "NetworkOracle",
    "OracleConfig",
    "RidgeOracle",
    "Rows",
    "SquareCB",
    "SquareCBConfig",
    "progressive",
    "rejection",
]
