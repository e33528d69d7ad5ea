"""What `/set` changes: the sampling parameters of the requests that a chat makes."""

import dataclasses
import difflib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Self


class SettingError(ValueError):
    """A name or a value that makes no sense; the message is for the user."""


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise ValueError(f"must be in {low:g} … {high:g}")
        return value

    return read


def _whole(low: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if value < low:
            raise ValueError(f"must be at least {low}")
        return value

    return read


def _switch(text: str) -> bool:
    values = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
    if text.lower() not in values:
        raise ValueError("must be on or off")
    return values[text.lower()]


def _stops(text: str) -> list[str]:
    """A JSON string, several of them, or the text itself."""
    try:
        found = json.loads(text)
    except ValueError:
        return [text]
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else [str(found)]


@dataclasses.dataclass(frozen=True, slots=True)
class _Setting:
    read: Callable[[str], Any]
    meaning: str


SETTINGS: Final[Mapping[str, _Setting]] = {
    "temperature": _Setting(_number(0, 100), "0: always the likeliest token"),
    "top_p": _Setting(_number(0, 1), "keep the likeliest tokens that have so much probability together"),
    "top_k": _Setting(_whole(-1), "keep this many of the likeliest tokens"),
    "min_p": _Setting(_number(0, 1), "keep tokens with at least that share of the likeliest one's probability"),
    "max_tokens": _Setting(_whole(1), "the most tokens of an answer"),
    "seed": _Setting(_whole(-(2**63)), "the same seed gives the same answer"),
    "stop": _Setting(_stops, "a text that ends an answer, or a JSON list of them"),
    "frequency_penalty": _Setting(_number(-2, 2), "against tokens that come often"),
    "presence_penalty": _Setting(_number(-2, 2), "against tokens that came already"),
    "repetition_penalty": _Setting(_number(0, 10), "the same, as a factor"),
    "think": _Setting(_switch, "on or off, for models that can do both"),
    "verbose": _Setting(_switch, "on: tokens and seconds under each answer"),
}
_OF_THE_TEMPLATE: Final = "think"
_OURS: Final = "verbose"


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a chat.

    Attributes:
        values: by name, of the settings that are set; the server decides the others.
    """

    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def set(self, name: str, text: str) -> Self:
        """Return the settings with one changed.

        Args:
            text: the value; empty: the server decides again.

        Raises:
            SettingError: there is no such setting, or its value is wrong.
        """
        name = name.replace("-", "_")
        if name not in SETTINGS:
            close = difflib.get_close_matches(name, SETTINGS, n=1)
            hint = f"; did you mean {close[0]}?" if close else f": one of {', '.join(SETTINGS)}"
            raise SettingError(f"there is no setting {name}{hint}")
        rest = {other: value for other, value in self.values.items() if other != name}
        if not text:
            return dataclasses.replace(self, values=rest)
        try:
            return dataclasses.replace(self, values=rest | {name: SETTINGS[name].read(text)})
        except ValueError as error:
            reason = str(error) if str(error).startswith("must") else f"must be a number, not {text!r}"
            raise SettingError(f"{name} {reason}") from None

    def with_defaults(self, values: Mapping[str, Any]) -> Self:
        """With values for what is not set. Names that are no settings are left out."""
        known = {name: value for name, value in values.items() if name in SETTINGS}
        return dataclasses.replace(self, values=known | dict(self.values))

    @property
    def verbose(self) -> bool:
        return bool(self.values.get(_OURS))

    def fields(self) -> dict[str, Any]:
        """Return the fields of a request's body."""
        found = {name: value for name, value in self.values.items() if name not in (_OF_THE_TEMPLATE, _OURS)}
        if _OF_THE_TEMPLATE in self.values:
            found["chat_template_kwargs"] = {"enable_thinking": self.values[_OF_THE_TEMPLATE]}
        return found

    def lines(self) -> list[str]:
        """All of them, with their values and meanings."""
        return [
            f"  {name:<19} {json.dumps(self.values[name]) if name in self.values else '-':<8} {setting.meaning}"
            for name, setting in SETTINGS.items()
        ]
