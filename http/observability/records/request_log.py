"""RequestLog: a line when a request comes and a line when it ends (--log-requests). It never sees headers or keys."""

import concurrent.futures
import dataclasses
import functools
import logging
import logging.handlers
import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Any

from palladio.http.observability.records.request_record import RequestRecord
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.request.prompt_parts import text_ids
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.telemetry.logs import fields, make_formatter
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

PARTIAL = 256  # characters of a text that level 2 shows
PARTIAL_TOKENS = 4 * (PARTIAL + 1)  # that hold as many and one more: a character has at most four tokens, one a byte
LONG = 4096  # tokens or characters of text in a line; more are decoded and written beside the event loop


class RequestLog:
    """
    Raises:
        ConfigError: the target cannot be written.

    Attributes:
        shows_text: whether prompts and answers are logged.
    """

    def __init__(self, config: ObservabilityConfig) -> None:
        self._level = config.log_requests_level
        self.shows_text = self._level >= 2
        self._handler = _open(config.log_requests_target)
        self._handler.setFormatter(make_formatter(config.log_requests_format or config.log_format))
        self._logger = logging.Logger("palladio.requests")  # of this app alone: in no tree, so no level hides it
        self._logger.addHandler(self._handler)
        self._writer = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="palladio-request-log")
        self._last: concurrent.futures.Future[None] | None = None  # of what the writer was told

    def received(self, record: RequestRecord, tokenizer: Tokenizer | None) -> None:
        """A request goes to the engine."""
        prompt_tokens = [len(request.prompt_ids) for request in record.requests]
        values: dict[str, Any] = {
            "x_request_id": record.origin.shown_id,
            "route": record.origin.route,
            "prompt_tokens": prompt_tokens[0] if len(prompt_tokens) == 1 else prompt_tokens,
        }
        if record.origin.owner:
            values["owner"] = record.origin.owner
        if self._level >= 1:
            params = [_given(request.params) for request in record.requests]
            values["sampling_params"] = params[0] if all(other == params[0] for other in params) else params
        if not self.shows_text:
            self._write("received", record.name, values)
            return
        limit = None if self._level >= 3 else PARTIAL_TOKENS
        texts = [text_ids(r.prompt_ids, r.media) if r.media else r.prompt_ids for r in record.requests]
        prompts = [text[:limit] for text in texts]  # one more character than is shown, if there is one

        def with_text() -> None:
            values["prompt"] = [self._cut(_text(prompt, tokenizer)) for prompt in prompts]
            self._write("received", record.name, values)

        self._run(with_text, sum(map(len, prompts)))

    def ended(self, record: RequestRecord) -> None:
        values: dict[str, Any] = {"status": record.status}
        if record.error is not None:
            values["error"] = record.error
        ends = [sample.end for sample in record.samples]
        values["finish_reason"] = [None if end is None or end.finish is None else end.finish.type for end in ends]
        values["completion_tokens"] = [0 if end is None else end.completion_tokens for end in ends]
        values["cached_tokens"] = [0 if end is None else end.cached_tokens for end in ends]
        totals = [sample.timings.total for sample in record.samples if sample.timings is not None]
        own = None if record.ended is None else record.ended - record.received
        values["seconds"] = max((total for total in totals if total is not None), default=own)
        if self.shows_text:
            values["text"] = [self._cut("".join(sample.texts)) for sample in record.samples]
        size = sum(map(len, values.get("text", ())))
        self._run(functools.partial(self._write, "finished", record.name, values), size)

    def close(self) -> None:
        """Writes what is left."""
        self._writer.shutdown()
        self._handler.close()

    def _run(self, write: Callable[[], None], size: int) -> None:
        """Writes at once, or beside the event loop if it is long or if something long is still being written.

        Args:
            size: of the text, in tokens or characters.
        """
        if size <= LONG and (self._last is None or self._last.done()):
            write()
        else:
            self._last = self._writer.submit(write)

    def _cut(self, text: str) -> str:
        return text if self._level >= 3 or len(text) <= PARTIAL else text[:PARTIAL] + "…"

    def _write(self, event: str, name: str, values: dict[str, Any]) -> None:
        shown = ", ".join(f"{key}={value!r}" for key, value in values.items())
        extra = fields(event=f"request_{event}", request_id=name, **values)
        self._logger.info("Request %s %s: %s", name, event, shown, extra=extra)


class _PrivateFile(logging.handlers.WatchedFileHandler):
    """Appends to a file, and to a new one when that was moved away; it makes files for their owner alone."""

    def _open(self) -> TextIOWrapper:
        def private(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, self.mode, encoding=self.encoding, errors=self.errors, opener=private)  # type: ignore[return-value]

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # a new one cannot be opened: as when it cannot be written, no request suffers from that
            self.handleError(record)


def _open(target: str) -> logging.Handler:
    if target == "stderr":
        return logging.StreamHandler(sys.stderr)
    try:
        return _PrivateFile(target, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to --log-requests-target {target}: {error.strerror}") from error


def _given(params: SamplingParams) -> dict[str, Any]:
    """The parameters that are not at their defaults."""
    plain = dataclasses.asdict(SamplingParams())
    return {name: value for name, value in dataclasses.asdict(params).items() if value != plain[name]}


def _text(prompt: str | list[int], tokenizer: Tokenizer | None) -> str:
    if isinstance(prompt, str):
        return prompt
    return str(prompt) if tokenizer is None else tokenizer.decode(prompt, False)
