"""Characters as tokens."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from mbrl.errors import ConfigError

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz +-*/%=<>()[]{}.,:;?!#@&|^~_'$\n"


class Codec(Protocol):
    """Text to tokens and back. A conversation is `opening(prompt)`, the model's turn up to `end`,
    `between(observation)`, the next turn, and so on."""

    size: int  # how many tokens there are
    pad: int  # fills what nothing reads
    end: int  # with it a turn ends

    def opening(self, prompt: str) -> list[int]: ...
    def between(self, observation: str) -> list[int]: ...
    def turn(self, text: str) -> list[int]:
        """A whole turn with its `end`."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a turn, without `end`."""
        ...


class Characters:
    """One token a character of `ALPHABET`, and four that are no text."""

    pad, begin, answer, end = range(4)
    size = 4 + len(ALPHABET)
    _ids: ClassVar[dict[str, int]] = {c: 4 + i for i, c in enumerate(ALPHABET)}

    def encode(self, text: str) -> list[int]:
        """Raises `ConfigError` for a character that is not in the alphabet."""
        try:
            return [self._ids[c] for c in text]
        except KeyError as error:
            raise ConfigError(
                f"character {error.args[0]!r} of {text!r} is not in the alphabet {ALPHABET!r}"
            ) from None

    def opening(self, prompt: str) -> list[int]:
        return [self.begin, *self.encode(prompt), self.answer]

    def between(self, observation: str) -> list[int]:
        return [*self.encode(observation), self.answer]

    def turn(self, text: str) -> list[int]:
        return [*self.encode(text), self.end]

    def decode(self, tokens: Sequence[int]) -> str:
        """Tokens that are no text show as the character "\\ufffd", which no task accepts."""
        ids = list(tokens)
        if ids and ids[-1] == self.end:
            ids.pop()
        return "".join(ALPHABET[i - 4] if i >= 4 else "\ufffd" for i in ids)
