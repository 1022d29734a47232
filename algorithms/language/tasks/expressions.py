"""Arithmetic expressions read from text that may be anything."""

import re
from fractions import Fraction
from typing import TypeAlias

Tree: TypeAlias = int | tuple[str, "Tree", "Tree"]

_TOKEN = re.compile(r"[0-9]{1,9}|[-+*/()]")
_RANK = {"+": 1, "-": 1, "*": 2, "/": 2}


def parse(text: str) -> Tree | None:
    """The expression of `+-*/`, brackets and integers of up to 9 digits, or None if it is none.
    As deep as the text's brackets, so texts should be short."""
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text:
        return None
    # Between two tokens that are numbers there was one number of more than 9 digits.
    if any(a.isdigit() and b.isdigit() for a, b in zip(tokens, tokens[1:], strict=False)):
        return None
    tokens.append("")
    try:
        tree = _sum(tokens)
    except ValueError:
        return None
    return tree if tokens == [""] else None


def _sum(tokens: list[str], rank: int = 1) -> Tree:
    """Takes from `tokens` operations of `rank` and above."""
    tree = _sum(tokens, 2) if rank == 1 else _atom(tokens)
    while _RANK.get(tokens[0]) == rank:
        sign = tokens.pop(0)
        tree = (sign, tree, _sum(tokens, 2) if rank == 1 else _atom(tokens))
    return tree


def _atom(tokens: list[str]) -> Tree:
    token = tokens.pop(0) if tokens[0] else ""
    if token == "-":
        operand = _atom(tokens)
        return -operand if isinstance(operand, int) else ("-", 0, operand)
    if token == "(":
        tree = _sum(tokens)
        if tokens[0] != ")":
            raise ValueError("a bracket is not closed")
        tokens.pop(0)
        return tree
    return int(token)


def written(tree: Tree, rank: int = 0) -> str:
    """The text of `tree`, with brackets only where `parse` needs them to give it back."""
    if isinstance(tree, int):
        return str(tree) if tree >= 0 or not rank else f"({tree})"
    sign, left, right = tree
    own = _RANK[sign]
    text = f"{written(left, own)}{sign}{written(right, own + 1)}"
    return f"({text})" if own < rank else text


def value(tree: Tree) -> Fraction:
    """Raises `ZeroDivisionError`."""
    if isinstance(tree, int):
        return Fraction(tree)
    sign, left, right = tree[0], value(tree[1]), value(tree[2])
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    return left * right if sign == "*" else left / right


def operations(tree: Tree) -> int:
    return 0 if isinstance(tree, int) else 1 + operations(tree[1]) + operations(tree[2])


def replaced(tree: Tree, part: Tree, number: int) -> Tree:
    """`tree` with `number` in place of every subtree that is `part`."""
    if tree == part:
        return number
    if isinstance(tree, int):
        return tree
    return tree[0], replaced(tree[1], part, number), replaced(tree[2], part, number)
