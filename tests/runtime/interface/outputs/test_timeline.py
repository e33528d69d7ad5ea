"""Timelines are bounded: neighbours become one before there are too many, and sums stay what they were."""

import itertools
import random

import msgspec
import pytest

from palladio.runtime.interface.outputs.request_trace import RequestTrace
from palladio.runtime.interface.outputs.timeline import MAX_BYTES, MAX_RECORDS, RECORD_BYTES, Timeline, TimelineRecord
from palladio.runtime.interface.outputs.token_output import TokenOutput

SUMS = ("steps", "compile_seconds", "tokens", "new_tokens", "rows", "bucket", "drafts", "accepted")


def decode(number: int, **fields: float) -> TimelineRecord:
    values = {"steps": 1, "new_tokens": 1, "rows": 3, "bucket": 4, "compile_seconds": 0.25, **fields}
    return TimelineRecord("decode", 2.0 * number, 1.5, **values)


def check(timeline: Timeline, added: list[TimelineRecord]) -> list[TimelineRecord]:
    """The bound, the order of times, and the sums."""
    records = list(timeline)
    assert len(timeline.data) == len(records) * RECORD_BYTES <= timeline.max_records * RECORD_BYTES
    for one, later in itertools.pairwise(records):
        assert one.end <= later.start
    for name in SUMS:
        assert sum(getattr(r, name) for r in records) == sum(getattr(r, name) for r in added), name
    assert (records[0].start, records[-1].end) == (added[0].start, added[-1].end)
    return records


def test_records_come_back_as_they_were() -> None:
    given = [
        TimelineRecord("handover", 0.0, 0.1),
        TimelineRecord("queued", 0.1, 0.2, "grammar"),
        TimelineRecord("prefix", 0.3, tokens=32),
        TimelineRecord("prefill", 0.3, 0.5, "", 1, 0.25, 100, 1, 120, 128),
        TimelineRecord("decode", 0.8, 0.1, "", 1, 0.0, 0, 4, 2, 2, 5, 3),
    ]
    timeline = Timeline()
    for record in given:
        timeline.add(record)
    assert list(timeline) == given
    assert not timeline.is_merged
    output = TokenOutput("r", [1], trace=RequestTrace(timeline=timeline))
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(output), type=TokenOutput)
    assert list(read.trace.timeline) == given


def test_a_wait_for_one_thing_is_one_record() -> None:
    timeline = Timeline()
    for number, reason in enumerate(("step", "memory", "memory", "step")):
        timeline.add(TimelineRecord("queued", float(number), 1.0, reason))
    assert [(r.reason, r.seconds) for r in timeline] == [("step", 1.0), ("memory", 2.0), ("step", 1.0)]
    assert not timeline.is_merged


@pytest.mark.parametrize("count", [MAX_RECORDS, MAX_RECORDS + 1, 3 * MAX_RECORDS])
def test_a_long_answer_is_told_in_runs(count: int) -> None:
    timeline, added = Timeline(), [decode(number) for number in range(count)]
    for record in added:
        timeline.add(record)
    records = check(timeline, added)
    assert timeline.is_merged == (count > MAX_RECORDS)
    assert len(timeline.data) <= MAX_BYTES
    steps = [record.steps for record in records]
    assert max(steps) == timeline.most_steps
    assert set(steps[:-1]) == {timeline.most_steps}, "all of it is told as finely"
    assert len(records) > MAX_RECORDS // 2


def test_what_the_front_adds_up_is_as_fine_as_what_the_engine_kept() -> None:
    whole, added = Timeline(max_records=64), [decode(number) for number in range(700)]
    for begin in range(0, 700, 50):
        part = Timeline(max_records=16)
        for record in added[begin : begin + 50]:
            part.add(record)
        whole.extend(part)
    check(whole, added)
    assert whole.is_merged


def test_kinds_that_take_turns_are_bounded_as_well() -> None:
    timeline, added = Timeline(max_records=16), []
    for number in range(200):
        kind = ("queued", "prefill", "retracted")[number % 3]
        steps = int(kind == "prefill")
        added.append(TimelineRecord(kind, 2.0 * number, 1.0, "memory" if kind == "queued" else "", steps, tokens=7))
        timeline.add(added[-1])
    assert "mixed" in {record.kind for record in check(timeline, added)}


def test_any_order_is_bounded() -> None:
    rng = random.Random(0)
    for most in (2, 3, 16, 33):
        timeline, added = Timeline(max_records=most), []
        for number in range(300):
            kind = rng.choice(["queued", "prefix", "prefill", "decode", "decode", "decode", "retracted"])
            steps = rng.choice([1, 8]) if kind == "decode" else int(kind == "prefill")
            added.append(TimelineRecord(kind, 2.0 * number, 1.0, "", steps, new_tokens=rng.randrange(4)))
            timeline.add(added[-1])
        check(timeline, added)


def test_tokens_behind_a_stop_string_are_taken_back() -> None:
    timeline = Timeline()
    timeline.take_back(1)
    for number in range(2):
        timeline.add(decode(number, new_tokens=4))
    timeline.take_back(3)
    assert [record.new_tokens for record in timeline] == [4, 1]


def test_a_copy_stays() -> None:
    timeline = Timeline()
    timeline.add(decode(0))
    copy = timeline.copy()
    timeline.drop()
    assert (len(copy), len(timeline), timeline.is_dropped) == (1, 0, True)
