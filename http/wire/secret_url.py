"""SecretUrl: a URL that may hold a password, and is shown without it."""

import re
import urllib.parse

_HIDDEN = "***"
_USER = re.compile(
    r"^([^:]*://[^:@/?#]*):(.*)@", re.DOTALL
)  # to the last @: a password that is not encoded may have one
_NAME = "[a-z_]*(?:password|secret|token)[a-z_]*"
_QUERY = re.compile(rf"(?i)([?&]{_NAME}=)([^&#]*)")
# libpq's other way to write the same, `host=db password=…`, which people may give in a URL's place
_WORD = re.compile(rf"(?i)((?:^|\s){_NAME}\s*=\s*)('(?:[^'\\]|\\.)*'?|(?:[^\s\\]|\\.)*)", re.DOTALL)


class SecretUrl:
    """Shows itself without what is secret: a password before the host, or in the query. It need not be a good URL.

    Attributes:
        value: all of it.
    """

    def __init__(self, value: str) -> None:
        self.value = value
        shown = _QUERY.sub(rf"\1{_HIDDEN}", _USER.sub(rf"\1:{_HIDDEN}@", value))
        self._shown = _WORD.sub(rf"\1{_HIDDEN}", shown)
        given = [found[2] for pattern in (_USER, _QUERY, _WORD) for found in pattern.finditer(value)]
        self._secrets = {form for secret in given if secret for form in (secret, urllib.parse.unquote(secret))}

    @property
    def scheme(self) -> str:
        return self.value.partition("://")[0]

    def __str__(self) -> str:
        return self._shown

    __repr__ = __str__

    def hide(self, text: str) -> str:
        """The text, such as a library's error, without what is secret."""
        text = text.replace(self.value, str(self))
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
        return text
