"""The timeline of FakeEngine's requests."""

from palladio.runtime.interface.outputs.timeline import Timeline, TimelineRecord

CACHED, PROMPT = 3, 5  # tokens
BEGINNING = (
    TimelineRecord("handover", 0.0, 0.125),
    TimelineRecord("queued", 0.125, 0.25, "memory"),
    TimelineRecord("prefix", 0.375, tokens=CACHED),
    TimelineRecord("prefill", 0.375, 0.125, "", 1, 0.0625, tokens=PROMPT - CACHED, rows=6, bucket=64),
    TimelineRecord("retracted", 0.5, tokens=PROMPT),
    TimelineRecord("queued", 0.5, 0.25, "slots"),
)


def fake_timeline(num_records: int, num_tokens: int = 0) -> Timeline:
    """The first records of a request, and a step for each of its tokens."""
    timeline = Timeline()
    for record in BEGINNING[:num_records]:
        timeline.add(record)
    for number in range(num_tokens):
        start = 0.75 + 0.01 * number
        timeline.add(TimelineRecord("decode", start, 0.01, "", 1, 0.0, 0, 1, 5, 8, drafts=3, accepted=1))
    return timeline
