"""Caller: who asks, as far as API keys tell: whose things are made by a request, and which it finds."""

import dataclasses
from typing import Annotated, Literal

from fastapi import Depends, Request

ADMIN = ":admin"  # the admin key's things are under it; no name of a key begins so
UNNAMED = "key:"  # what owners of keys without a name begin with; no name holds a colon

Sees = Literal["own", "shared", "all"]


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """Attributes:
    owner: of what is made; empty: nobody, as on servers without keys.
    sees: own: what this owner made; shared: also what was made without a key, or with keys that have no name;
        all: what anybody made.
    """

    owner: str = ""
    sees: Sees = "all"

    def may_see(self, owner: str) -> bool:
        """Args: owner: of the thing in question. To whoever may not, it is not there."""
        match self.sees:
            case "all":
                return True
            case "shared":
                return owner in (self.owner, "") or owner.startswith(UNNAMED)
            case "own":
                return owner == self.owner

    def condition(self, column: str = "owner") -> tuple[str, tuple[str, ...]]:
        """The same in SQL, for WHERE: a condition of the column that holds the owner, and its values."""
        match self.sees:
            case "all":
                return "TRUE", ()
            case "shared":
                return f"({column} IN (?, '') OR {column} GLOB '{UNNAMED}*')", (self.owner,)
            case "own":
                return f"{column} = ?", (self.owner,)

    @property
    def keeper(self) -> "Caller":
        """Finds those things that count for the same limits. The admin key's things make no room among others'."""
        return dataclasses.replace(self, sees="own") if self.owner == ADMIN else self


SERVER = Caller()  # the server itself, for what it has to do with anybody's things


async def _of_request(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


CallerOf = Annotated[Caller, Depends(_of_request)]  # a parameter of routes
