"""RequestLog: a line when a request comes and a line when it ends (--log-requests). It never sees headers or keys."""

import dataclasses
import logging
import sys
from typing import Any

from palladio.http.observability_config import ObservabilityConfig
from palladio.http.request_record import RequestRecord
from palladio.runtime.errors import ConfigError
from palladio.runtime.logs import fields, make_formatter
from palladio.runtime.sampling_params import SamplingParams
from palladio.runtime.tokenizer import Tokenizer

PARTIAL = 256  # characters of a text that level 2 shows


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
        self._handler.setFormatter(make_formatter(config.log_requests_format))
        self._logger = logging.Logger("palladio.requests")  # of this app alone: in no tree, so no level hides it
        self._logger.addHandler(self._handler)

    def received(self, record: RequestRecord, tokenizer: Tokenizer | None) -> None:
        """A request goes to the engine."""
        prompt_tokens = [len(job.prompt) for job in record.jobs]
        values: dict[str, Any] = {
            "x_request_id": record.origin.shown_id,
            "route": record.origin.route,
            "prompt_tokens": prompt_tokens[0] if len(prompt_tokens) == 1 else prompt_tokens,
        }
        if self._level >= 1:
            params = [_given(job.params) for job in record.jobs]
            values["sampling_params"] = params[0] if all(other == params[0] for other in params) else params
        if self.shows_text:
            values["prompt"] = [self._cut(_text(job.prompt, tokenizer)) for job in record.jobs]
        self._write("received", record, values)

    def ended(self, record: RequestRecord) -> None:
        values: dict[str, Any] = {"status": record.status}
        if record.error is not None:
            values["error"] = record.error
        ends = [sample.end for sample in record.samples]
        values["finish_reason"] = [None if end is None or end.finish is None else end.finish.type for end in ends]
        values["completion_tokens"] = [0 if end is None else end.completion_tokens for end in ends]
        values["cached_tokens"] = [0 if end is None else end.cached_tokens for end in ends]
        totals = [sample.timings.total for sample in record.samples if sample.timings is not None]
        values["seconds"] = max((total for total in totals if total is not None), default=None)
        if self.shows_text:
            values["text"] = [self._cut("".join(sample.texts)) for sample in record.samples]
        self._write("finished", record, values)

    def close(self) -> None:
        self._handler.close()

    def _cut(self, text: str) -> str:
        return text if self._level >= 3 or len(text) <= PARTIAL else text[:PARTIAL] + "…"

    def _write(self, event: str, record: RequestRecord, values: dict[str, Any]) -> None:
        shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
        extra = fields(event=f"request_{event}", request_id=record.name, **values)
        self._logger.info("Request %s %s: %s", record.name, event, shown, extra=extra)


def _open(target: str) -> logging.Handler:
    if target == "stderr":
        return logging.StreamHandler(sys.stderr)
    try:
        return logging.FileHandler(target, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--log-requests-target {target} cannot be written: {error.strerror}") from error


def _given(params: SamplingParams) -> dict[str, Any]:
    """The parameters that are not at their defaults."""
    plain = dataclasses.asdict(SamplingParams())
    return {name: value for name, value in dataclasses.asdict(params).items() if value != plain[name]}


def _text(prompt: str | list[int], tokenizer: Tokenizer | None) -> str:
    if isinstance(prompt, str):
        return prompt
    return str(prompt) if tokenizer is None else tokenizer.decode(prompt, False)
