"""The verb `explain`: the composed formula of a recipe, in plain text."""

from mbrl.policy_gradient import recipe
from mbrl.policy_gradient.explain import explain

HELP = """usage: python -m experiments explain RECIPE...

Advantage and loss of a recipe with the numbers of its settings, the paper that it is from, how well
that is known, what it needs, and where it differs. `list recipes` has the names."""


def main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0 if arguments else 2
    print("\n\n".join(explain(recipe(name)) for name in arguments))
    return 0
