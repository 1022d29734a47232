"""Importing this makes the recipes known to verl: it belongs into VERL_USE_EXTERNAL_MODULES, which
verl reads in each of its processes."""

from verl.trainer.ppo import core_algos

from algorithms.language.adapters import verl

verl.register(core_algos)
