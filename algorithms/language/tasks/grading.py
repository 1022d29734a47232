"""What the checks of several tasks share."""

import re

from algorithms.language.tasks.base import Reply

# Not `\d`, which takes digits of every script; bounded, since `int` is slow on long ones.
_INTEGER = re.compile(r"-?[0-9]{1,12}")


def integer(text: str) -> int | None:
    """The number that `text` is, of at most 12 digits, and nothing around it."""
    return int(text) if _INTEGER.fullmatch(text) else None


def last(right: bool) -> Reply:
    """What ends a problem: reward 1 if `right`, else 0."""
    return Reply(reward=float(right), success=right)
