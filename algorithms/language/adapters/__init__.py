"""Recipes of `mbrl.policy_gradient` where language models are trained: as functions of plain
tensors (`advantages`, `loss`), and in the shape of the hooks of TRL, verl, prime-rl and rLLM, one
file each. None of these is imported here."""

from algorithms.language.adapters.tensors import advantages, loss

__all__ = ["advantages", "loss"]
