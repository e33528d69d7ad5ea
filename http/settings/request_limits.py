"""RequestLimits: how large a request may be, by the flags, or where they say nothing by the model's context."""

import dataclasses

from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.front.engine_protocol import EngineClient
from palladio.runtime.front.request_intake import LengthLimit
from palladio.runtime.interface.errors import EngineDeadError, EngineNotReadyError

BASE_BYTES = 8 << 20  # for tools, schemas, and prompts side by side
TOKEN_BYTES = 64  # of the context: a token is about 4 bytes of English, 9 of escaped Chinese, 8 as an id
MOST_BYTES = 32 << 20  # by default: reading it takes some 50 ms, in which nothing else runs
BASE_VALUES = 1_000_000  # likewise


@dataclasses.dataclass(frozen=True, slots=True)
class RequestLimits:
    """Of one server. While the model's context is not known, they are the largest."""

    engine: EngineClient
    config: HttpConfig

    @property
    def max_bytes(self) -> int:
        """Of a body, or of a line of a batch."""
        if self.config.max_request_bytes is not None:
            return self.config.max_request_bytes
        return min(BASE_BYTES + TOKEN_BYTES * self._context_length, MOST_BYTES)

    @property
    def max_values(self) -> int:
        """Of its JSON: see json_cost. A prompt of token ids that fits the context fits here."""
        if self.config.max_request_values is not None:
            return self.config.max_request_values
        return BASE_VALUES + self._context_length

    @property
    def _context_length(self) -> int:
        try:
            return LengthLimit.of(self.engine.info).limit
        except (EngineNotReadyError, EngineDeadError):
            return (MOST_BYTES - BASE_BYTES) // TOKEN_BYTES
