"""Observer: sees every request begin and end, and passes that on to the metrics, the log and the traces."""

import collections
import logging
from collections.abc import Sequence
from typing import Final

from palladio.http.observability.explain.explanation import describe_timings, timing_fields
from palladio.http.observability.explain.timeline_fields import TimelineBudget
from palladio.http.observability.profile_folder import ProfileFolder
from palladio.http.observability.records.front_counts import FrontMetrics
from palladio.http.observability.records.recent_errors import RecentErrors
from palladio.http.observability.records.request_log import RequestLog
from palladio.http.observability.records.request_record import Origin, RequestRecord
from palladio.http.observability.records.spans import Spans
from palladio.http.security.callers import Caller
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.telemetry.logs import fields
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_MAX_IGNORED = 1000  # fields that are counted one by one: their names are the clients'


class Observer:
    """One for an app.

    Args:
        spans: None: no traces are wanted.

    Raises:
        ConfigError: --log-requests-target cannot be written.

    Attributes:
        live: the requests that have not ended, by owner and id.
        finished: the last ones that have.
        profiles: where they may be written.
        errors: the last ones.
    """

    def __init__(self, config: ObservabilityConfig, spans: Spans | None = None) -> None:
        self.metrics = FrontMetrics(config)
        self.live: dict[tuple[str, str], RequestRecord] = {}
        self.finished = FinishedRequests(config.num_explained_requests)
        self.profiles = ProfileFolder(config.profile_folder)
        self.errors = RecentErrors()
        self._log = RequestLog(config) if config.log_requests else None
        self._spans = spans
        self._ignored: collections.Counter[str] = collections.Counter()  # by the path of the field
        self._timelines = TimelineBudget()
        self._logs_times = config.enable_request_time_stats_logging

    def begin(
        self, name: str, requests: Sequence[GenerationRequest], origin: Origin, tokenizer: Tokenizer | None
    ) -> RequestRecord:
        """A request goes to the engine; its outputs are to be added to the record, and its end told."""
        keeps_text = self._log is not None and self._log.shows_text and origin.is_logged
        record = RequestRecord(name, requests, origin, self.metrics, self._end, keeps_text=keeps_text)
        self.live[origin.owner, name] = record
        if self._log is not None and origin.is_logged:
            self._log.received(record, tokenizer)
        return record

    def note_warning(self, param: str, code: str) -> None:
        """A request has a field without effect: counted; the log has the 1st, 10th, 100th … time of each field.

        Args:
            param: its path, as the client wrote it.
        """
        self.metrics.note_warning(code)
        if param not in self._ignored and len(self._ignored) >= _MAX_IGNORED:
            param = "others"
        self._ignored[param] += 1
        count = self._ignored[param]
        if str(count).strip("0") == "1":
            told = fields(event="ignored_field", param=param, count=count)
            logger.warning("Field %r of a request has no effect (%d so far)", param, count, extra=told)

    def find(self, request_id: str, caller: Caller) -> RequestRecord | None:
        """One that the caller may see: by its own id, by its X-Request-Id, or by the id of one of its prompts."""
        record = self.live.get((caller.owner, request_id))
        if record is None:
            seen = (one for one in self.live.values() if caller.may_see(one.origin.owner))
            record = next((one for one in seen if request_id in one.names), None)
        return record or self.finished.find(request_id, caller)

    def close(self) -> None:
        """Sends and writes what is left."""
        if self._spans is not None:
            self._spans.close()
        if self._log is not None:
            self._log.close()
        self.profiles.close()

    def _end(self, record: RequestRecord) -> None:
        key = record.origin.owner, record.name
        if self.live.get(key) is record:
            del self.live[key]
        self.finished.add(record)
        if any(request.options.timeline for request in record.requests):
            self._timelines.add(record)
        if self._log is not None and record.origin.is_logged:
            self._log.ended(record)
        if self._logs_times:
            for index, sample in enumerate(record.samples):
                if (timings := sample.timings) is not None:
                    logger.info(
                        "Request %s sample %d: %s",
                        record.name,
                        index,
                        describe_timings(timings),
                        extra=fields(
                            event="request_times", request_id=record.name, index=index, **timing_fields(timings)
                        ),
                    )
        if self._spans is not None:
            self._spans.record(record)
        record.forget_texts()


SAMPLES_EACH: Final = 8  # of a remembered request, on average: one request may have thousands


class FinishedRequests:
    """Remembers the latest requests; each is found by its own id, by those of its prompts, and by its X-Request-Id, the
    latest of equals.

    Args:
        size: how many; fewer if they have more than SAMPLES_EACH samples on average.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._num_samples = 0
        self._records: collections.deque[RequestRecord] = collections.deque()
        self._by_id: dict[str, list[RequestRecord]] = {}  # the latest comes last

    def add(self, record: RequestRecord) -> None:
        if self._size == 0:
            return
        self._records.append(record)
        self._num_samples += len(record.samples)
        for name in set(record.names):
            self._by_id.setdefault(name, []).append(record)
        while len(self._records) > self._size or (
            self._num_samples > SAMPLES_EACH * self._size and len(self._records) > 1
        ):
            self._forget(self._records.popleft())

    def find(self, request_id: str, caller: Caller) -> RequestRecord | None:
        records = reversed(self._by_id.get(request_id, ()))
        return next((record for record in records if caller.may_see(record.origin.owner)), None)

    def _forget(self, record: RequestRecord) -> None:
        self._num_samples -= len(record.samples)
        for name in set(record.names):
            records = self._by_id[name]
            records.remove(record)  # the first: it is the oldest of all
            if not records:
                del self._by_id[name]
