"""Importing this makes the recipes known to verl: it belongs into VERL_USE_EXTERNAL_MODULES, which
verl reads in each of its processes. Without verl nothing happens."""

import importlib.util

from algorithms.language.adapters import verl

if importlib.util.find_spec("verl") is not None:
    from verl.trainer.ppo import core_algos

    verl.register(core_algos)
