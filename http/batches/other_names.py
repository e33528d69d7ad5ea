"""Names of models in the lines of a batch that are not names of the served one: one warning for all of them."""

import logging
from collections.abc import Iterable

from palladio.http.batches.batch_records import Line
from palladio.http.generation.context import Context

_MOST = 5  # names that the warning lists
_LONGEST = 100  # characters of a name

logger = logging.getLogger(__name__)


def asked_model(line: Line) -> str | None:
    """The name that a line gives; None: none."""
    model = line.body.get("model") if line.body is not None else None
    return model if isinstance(model, str) else None


class OtherNames:
    """Collects such names of one batch."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._names: dict[str, None] = {}
        self._count = 0

    def add(self, lines: Iterable[Line]) -> None:
        """Looks at more lines."""
        for line in lines:
            name = asked_model(line)
            if name is None or self._context.names.has(name):
                continue
            self._count += 1
            if len(self._names) < _MOST:
                self._names.setdefault(name[:_LONGEST])

    def warn(self, batch_id: str) -> None:
        """Log one warning, if there are such lines."""
        if not self._count:
            return
        served, given = self._context.names.shown[0], ", ".join(map(repr, self._names))
        outcome = (
            f"{served} answers them"
            if self._context.names.takes_any
            else f'each gets a 404: write {served} or "default" there, or add --served-model-name "*"'
        )
        logger.warning("Batch %s: %d lines name other models (%s); %s", batch_id, self._count, given, outcome)
