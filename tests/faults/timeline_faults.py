"""Faults of timelines."""

from tests.faults.fault import Fault

_RECORDER = ("tests/runtime/core/watch/test_timeline_recorder.py",)
_RECORDS = ("tests/runtime/interface/outputs/test_timeline.py",)
_EXPLAINED = ("tests/http/routes/test_explained_timelines.py",)

TIMELINE_FAULTS = (
    Fault(
        "a timeline outgrows its bound",
        "runtime/interface/outputs/timeline.py",
        "while len(self) > self.max_records",
        "while len(self) > 2 * self.max_records",
        _RECORDS,
    ),
    Fault(
        "a run of steps begins at its last one",
        "runtime/interface/outputs/timeline.py",
        "TimelineRecord(kind, self.start, seconds,",
        "TimelineRecord(kind, later.start, seconds,",
        _RECORDS,
    ),
    Fault(
        "a step tells all tokens so far",
        "runtime/core/watch/timeline_recorder.py",
        "self.num_tokens, self.num_drafts = total,",
        "self.num_tokens, self.num_drafts = 0,",
        _RECORDER,
    ),
    Fault(
        "a step begins when it is dispatched, though another one runs",
        "runtime/core/watch/timeline_recorder.py",
        "part.begin(self._last_read)",
        "part.begin(part.start)",
        _RECORDER,
    ),
    Fault(
        "every request is recorded",
        "runtime/core/watch/timeline_recorder.py",
        "if request.given.options.timeline:",
        "if request.given.options is not None:",
        _RECORDER,
    ),
    Fault(
        "an aborted request is watched for ever",
        "runtime/core/watch/timeline_recorder.py",
        "self._watched.pop(request_id, None)",
        "self._watched.get(request_id, None)",
        _RECORDER,
    ),
    Fault(
        "a timeline has tokens that a stop string has cut off",
        "runtime/front/requests/samples.py",
        "take_back(len(output.token_ids) - num_taken)",
        "take_back(0)",
        ("tests/runtime/front/requests/test_output_processor.py",),
    ),
    Fault(
        "timelines of requests that have ended are kept without bound",
        "http/observability/explain/timeline_fields.py",
        "if num_bytes <= self._max_bytes:",
        "if num_bytes >= 0:",
        _EXPLAINED,
    ),
    Fault(
        "parts of a drawn timeline overlap",
        "http/pages/files/chat/timeline_records.js",
        "const start = Math.max(end, chunk.after_seconds);",
        "const start = Math.min(end, chunk.after_seconds);",
        ("tests/http/pages/test_modules.py",),
    ),
)
