"""The source of a sample's choices: one seed gives one sample, whatever was drawn before it.

Held-out data is split off here, in one place: some of the ways to ask, and by a checksum some of the names, number
pairs and tool names. Training never sees them, evaluation sees nothing else.
"""

import random
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

HELD_OUT_SHARE = 8  # one in eight
_ONSETS = (
    *("b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "pr", "r", "s"),
    *("sh", "st", "t", "th", "tr", "v", "w", "y", "z"),
)
_VOWELS = ("a", "a", "e", "e", "i", "o", "o", "u", "ai", "ea", "ia", "oo")
_ENDINGS = (
    *("er", "son", "man", "ez", "ski", "ini", "ov", "ley", "ton", "ford", "berg", "dorf", "ville", "ella", "ard", "us"),
    *("burg", "holm", "stad", "port", "mouth", "wick", "well", "land", "ina", "elle"),
)
_CODAS = ("", "", "", "n", "r", "l", "s", "m", "nd", "rt", "x", "ck")


class Source:
    """Args:
    seed: what the choices follow from.
    held_out: draw what training never sees, where a choice has such a part.
    """

    def __init__(self, seed: str, *, held_out: bool = False) -> None:
        self._random = random.Random(seed)
        self.held_out = held_out

    def pick(self, options: Sequence[T]) -> T:
        """Any of them."""
        return options[int(self._random.random() * len(options))]

    def phrase(self, options: Sequence[str]) -> str:
        """A way to ask: the last eighth of them (at least one, of two or more) is held out."""
        num_held_out = 0 if len(options) < 2 else max(1, len(options) // HELD_OUT_SHARE)
        cut = len(options) - num_held_out
        return self.pick(options[cut:] if self.held_out and num_held_out else options[:cut])

    def several(self, options: Sequence[T], count: int) -> list[T]:
        """Different ones, in any order."""
        return self._random.sample(list(options), count)

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def number(self, least: int, most: int) -> int:
        return least + int(self._random.random() * (most - least + 1))

    def split(self, draw: Callable[[], T]) -> T:
        """The first of what `draw` gives that is on this side of the split."""
        while True:
            value = draw()
            if is_held_out(value) == self.held_out:
                return value

    def name(self) -> str:
        """An invented proper name of two or three syllables."""
        return self.split(self._invent)

    def _invent(self) -> str:
        syllables = [self.pick(_ONSETS) + self.pick(_VOWELS) for _ in range(self.pick((1, 2, 2, 2, 3)))]
        end = self.pick(_CODAS) if self.chance(0.6) else self.pick(_ENDINGS)
        return ("".join(syllables) + end).capitalize()


def is_held_out(value: object) -> bool:
    """Return whether training must not see this value."""
    return zlib.crc32(repr(value).encode()) % HELD_OUT_SHARE == 0
