"""The table of recipes: every paper's objective by name."""

from mbrl.errors import unknown_name
from mbrl.policy_gradient.recipe import Recipe
from mbrl.policy_gradient.recipes.advantages import ADVANTAGES
from mbrl.policy_gradient.recipes.clipping import CLIPPING
from mbrl.policy_gradient.recipes.domains import DOMAINS
from mbrl.policy_gradient.recipes.foundations import BASE
from mbrl.policy_gradient.recipes.hints import HINTS
from mbrl.policy_gradient.recipes.multi_turn import TURNS
from mbrl.policy_gradient.recipes.off_policy import OFF_POLICY
from mbrl.policy_gradient.recipes.selections import SELECTIONS

TABLES = {
    "foundations": BASE,
    "advantages": ADVANTAGES,
    "multi_turn": TURNS,
    "selections": SELECTIONS,
    "off_policy": OFF_POLICY,
    "clipping": CLIPPING,
    "hints": HINTS,
    "domains": DOMAINS,
}
RECIPES: dict[str, Recipe] = {r.name: r for table in TABLES.values() for r in table}


def recipe(name: str) -> Recipe:
    """The recipe of that name. Raises `ConfigError` with the nearest names if there is none."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]
