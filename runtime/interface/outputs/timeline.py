"""A request's timeline: what became of it, step by step. It exists for requests that ask for it, in bounded memory."""

import dataclasses
import struct
from collections.abc import Iterator
from typing import Literal, NamedTuple, Self, get_args

TimelineKind = Literal["handover", "queued", "prefix", "prefill", "decode", "idle", "retracted", "mixed"]
QueueReason = Literal["", "slots", "memory", "step", "compile", "grammar"]  # WaitReason, and reasons of timelines alone

_KINDS: tuple[TimelineKind, ...] = get_args(TimelineKind)
_REASONS: tuple[QueueReason, ...] = get_args(QueueReason)
_LAYOUT = struct.Struct("<BBxxIdddIIIIII")
_MOST = 2**32 - 1

RECORD_BYTES = _LAYOUT.size
MAX_RECORDS = 5120
MAX_BYTES = MAX_RECORDS * RECORD_BYTES  # of one sample: 280 KiB


class TimelineRecord(NamedTuple):
    """A part of a request's time. Numbers of a record that stands for several steps are sums.

    Attributes:
        kind: "handover": from its arrival to the engine; "queued"; "prefix": pages were found in the prefix cache;
            "prefill": a chunk was computed; "decode": a step that decoded it; "idle": others' steps ran, or
            generation was paused; "retracted": it gave up its pages; "mixed": several of these, since there was no
            room to keep them apart.
        start: seconds since the request came.
        reason: of "queued": what it waited for; "grammar": for its grammar to be compiled.
        steps: forward passes.
        compile_seconds: of `seconds`: the engine built programs.
        tokens: of the prompt (or, after a retraction, of what follows it) that were found or computed; of "retracted":
            that were given up.
        new_tokens: tokens that the answer got.
        rows: requests that decoded in the step; of "prefill": tokens of all requests in the step.
        bucket: rows, or tokens, that the step's program holds.
        drafts, accepted: drafts of this request that were proposed, and that were right.
    """

    kind: TimelineKind
    start: float
    seconds: float = 0.0
    reason: QueueReason = ""
    steps: int = 0
    compile_seconds: float = 0.0
    tokens: int = 0
    new_tokens: int = 0
    rows: int = 0
    bucket: int = 0
    drafts: int = 0
    accepted: int = 0

    @property
    def end(self) -> float:
        return self.start + self.seconds

    def join(self, later: Self) -> "TimelineRecord":
        """Both as one. What is between them counts as theirs."""
        kind, reason = self.kind, self.reason
        if (later.kind, later.reason) != (kind, reason):
            kind, reason = "mixed", ""
        sums = (min(one + other, _MOST) for one, other in zip(self[6:], later[6:], strict=True))
        compile_seconds = self.compile_seconds + later.compile_seconds
        seconds, steps = later.end - self.start, min(self.steps + later.steps, _MOST)
        return TimelineRecord(kind, self.start, seconds, reason, steps, compile_seconds, *sums)


@dataclasses.dataclass(slots=True, weakref_slot=True)
class Timeline:
    """Records in the order of their starts. If there would be too many, neighbours become one: `most_steps` doubles
    until there is room, and holds for what comes later, so that the resolution is the same everywhere.

    Attributes:
        data: the records, packed.
        most_steps: steps that one record may stand for.
        max_records: records that may be kept.
        is_dropped: it made room for others' and is gone.
    """

    data: bytearray = dataclasses.field(default_factory=bytearray)
    most_steps: int = 1
    max_records: int = MAX_RECORDS
    is_dropped: bool = False

    def __len__(self) -> int:
        return len(self.data) // RECORD_BYTES

    def __iter__(self) -> Iterator[TimelineRecord]:
        for values in _LAYOUT.iter_unpack(self.data):
            yield _record(values)

    @property
    def is_merged(self) -> bool:
        """Whether a record may stand for several steps."""
        return self.most_steps > 1

    def add(self, record: TimelineRecord) -> None:
        """The next record."""
        if self.data:
            last = _record(_LAYOUT.unpack_from(self.data, len(self.data) - RECORD_BYTES))
            if self._are_one(last, record):
                record = last.join(record)
                del self.data[-RECORD_BYTES:]
        self.data += _packed(record)
        while len(self) > self.max_records:
            self._coarsen()

    def extend(self, later: "Timeline") -> None:
        """Adds what came after these records."""
        self.most_steps = max(self.most_steps, later.most_steps)
        for record in later:
            self.add(record)

    def take_back(self, num_tokens: int) -> None:
        """The last step's last tokens are not part of the answer, which a stop string has ended before them."""
        if self.data:
            *_, last = self
            del self.data[-RECORD_BYTES:]
            self.data += _packed(last._replace(new_tokens=max(0, last.new_tokens - num_tokens)))

    def drop(self) -> None:
        """Gives its memory up."""
        self.data, self.is_dropped = bytearray(), True

    def copy(self) -> "Timeline":
        """One that later records do not change."""
        return Timeline(bytearray(self.data), self.most_steps, self.max_records, self.is_dropped)

    def _are_one(self, one: TimelineRecord, other: TimelineRecord) -> bool:
        if (one.kind, one.reason) != (other.kind, other.reason):
            return False
        return one.kind == "queued" or one.steps + other.steps <= self.most_steps

    def _coarsen(self) -> None:
        """Makes room for three records of eight, at least."""
        records = list(self)
        num_steps = sum(record.steps for record in records)
        while 8 * len(records) > 5 * self.max_records and len(records) > 1:
            if self.most_steps > num_steps:  # neighbours differ in kind: only unlike records can be joined
                records = [_joined(pair) for pair in zip(records[::2], [*records[1::2], None], strict=False)]
                continue
            self.most_steps *= 2
            kept: list[TimelineRecord] = []
            for record in records:
                if kept and self._are_one(kept[-1], record):
                    kept[-1] = kept[-1].join(record)
                else:
                    kept.append(record)
            records = kept
        self.data = bytearray().join(map(_packed, records))


def _joined(pair: tuple[TimelineRecord, TimelineRecord | None]) -> TimelineRecord:
    return pair[0] if pair[1] is None else pair[0].join(pair[1])


def _packed(record: TimelineRecord) -> bytes:
    kind, start, seconds, reason, steps, compile_seconds, *counts = record
    times = (start, seconds, compile_seconds)
    return _LAYOUT.pack(_KINDS.index(kind), _REASONS.index(reason), steps, *times, *counts)


def _record(values: tuple[int | float, ...]) -> TimelineRecord:
    kind, reason, steps, start, seconds, compile_seconds, *counts = values
    names = _KINDS[int(kind)], _REASONS[int(reason)]
    return TimelineRecord(names[0], start, seconds, names[1], int(steps), compile_seconds, *map(int, counts))
