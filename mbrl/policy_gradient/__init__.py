"""Policy gradients as an algebra: pure functions along named axes, one objective, one table."""

from mbrl.policy_gradient.objective import Estimate, estimate, loss, shuffled
from mbrl.policy_gradient.recipe import Recipe, Term
from mbrl.policy_gradient.recipes import RECIPES, recipe

__all__ = ["RECIPES", "Estimate", "Recipe", "Term", "estimate", "loss", "recipe", "shuffled"]
