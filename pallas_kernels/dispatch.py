"""Selection of an op's backend: by name, or (`auto`) the first of a list that accepts the call."""

from collections.abc import Callable, Mapping
from typing import TypeVar

Result = TypeVar("Result")


def dispatch(op: str, backends: Mapping[str, Callable[[], Result]], order: tuple[str, ...], backend: str) -> Result:
    """Call one backend of an op.

    Args:
        op: name of the op, for messages.
        backends: every backend, by name, with the call's arguments already bound.
        order: backends that `auto` tries, best first. A backend that cannot do a call raises NotImplementedError.
        backend: a name, or "auto".

    Raises:
        ValueError: there is no backend of that name.
        NotImplementedError: the named backend refuses; under `auto`, all of them do (the message gives each reason).
    """
    if backend != "auto" and backend not in backends:
        raise ValueError(f"{op} has no backend {backend!r}; known: auto, {', '.join(sorted(backends))}")
    refusals = []
    for name in order if backend == "auto" else (backend,):
        try:
            return backends[name]()
        except NotImplementedError as refusal:
            refusals.append(f"{name}: {refusal}")
    raise NotImplementedError(f"no backend of {op} accepts this call ({'; '.join(refusals)})")
