"""Panics of libraries that are written in Rust: pyo3 raises them past every `except Exception`."""

import contextlib
import dataclasses
from types import TracebackType

from palladio.runtime.interface.errors import GenerationError


def is_panic(error: BaseException | None) -> bool:
    """Whether an exception is a panic. Each library has its own type for panics, and none exports it."""
    return error is not None and type(error).__module__ == "pyo3_runtime"


@dataclasses.dataclass(frozen=True)
class PanicGuard(contextlib.ContextDecorator):
    """Wraps calls of such a library: a panic ends the request that it is for, and nothing else.

    Attributes:
        what: has failed, for the message.

    Raises:
        GenerationError: the library panicked.
    """

    what: str

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if is_panic(error):
            reason = str(error).strip().partition("\n")[0][:500]
            raise GenerationError(f"{self.what} failed on this input: {reason}") from error
