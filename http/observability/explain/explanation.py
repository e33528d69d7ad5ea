"""A request's story as JSON and as a sentence: where its time went, and why."""

import dataclasses
from typing import Any

from palladio.http.observability.explain.timeline_fields import timeline_fields
from palladio.http.observability.records.request_record import RequestRecord, SampleRecord
from palladio.runtime.interface.messages.engine_stats import LiveRequest, QueueState
from palladio.runtime.interface.outputs.request_output import RequestOutput, RequestTimings
from palladio.runtime.interface.outputs.request_trace import DecodeSteps, RequestTimes, RequestTrace, WaitTimes
from palladio.runtime.interface.outputs.timeline import Timeline

Story = RequestOutput | LiveRequest  # of a sample that has ended, or of one that has not


def explain_record(
    record: RequestRecord, live: dict[int, LiveRequest], max_running: int, only: int | None = None
) -> dict[str, Any]:
    """The answer of /v1/requests/{id}/explain.

    Args:
        live: what the engine says of samples that have not ended, by their index in the request.
        max_running: requests that run at once, at most.
        only: the index of the only sample to explain; None: all.
    """
    samples, num_shown = [], 0
    for index, sample in enumerate(record.samples):
        if only is None or index == only:
            fields = _sample(record, index, sample, live.get(index), max_running)
            timeline = _timeline(sample, live.get(index), num_shown)
            num_shown += len(timeline.get("timeline", {}).get("records", ()))
            samples.append(fields | timeline)
    states = {sample["status"] for sample in samples}
    under_way = "waiting" if states == {"waiting"} else "running"
    texts = [sample["summary"] for sample in samples]
    if record.error is not None:
        texts.append(f"ended early: {record.error}")
    return {
        "id": record.name,
        "object": "request.explanation",
        "x_request_id": record.origin.shown_id,
        "route": record.origin.route,
        "status": under_way if record.status == "live" else record.status,
        "error": record.error,
        "received": record.received,
        "summary": " | ".join(dict.fromkeys(texts)),
        "samples": samples,
    }


def _sample(
    record: RequestRecord, index: int, sample: SampleRecord, live: LiveRequest | None, max_running: int
) -> dict[str, Any]:
    story: Story | None = live if sample.end is None else sample.end
    answer: dict[str, Any] = {"index": index, "status": _status(record, sample, live)}
    if sample.end is not None and sample.end.finish is not None:
        answer["finish_reason"] = sample.end.finish.type
    if story is None or story.times is None:
        if record.ended is None:
            return answer | {"summary": "the engine has no information about this request"}
        return answer | {"summary": f"no output after {record.ended - record.received:.2f} s"}
    queue = story.queue if isinstance(story, LiveRequest) else None
    detokenize = 0.0 if isinstance(story, LiveRequest) else story.detokenize_seconds
    timings = RequestTimings.of(story.times, story.trace, detokenize)
    answer["summary"] = _summarize(story, timings, queue, max_running)
    answer |= {f"{name}_seconds": value for name, value in timing_fields(timings).items()}
    answer |= {
        "prompt_tokens": story.prompt_tokens,
        "completion_tokens": story.completion_tokens,
        "cached_tokens": story.cached_tokens,
        "num_retractions": story.num_retractions,
    }
    if story.trace is not None:
        answer |= _trace_fields(story.times, story.trace)
    if queue is not None:
        answer |= {f"queue_{name}": value for name, value in dataclasses.asdict(queue).items()}
    return answer


def _timeline(sample: SampleRecord, live: LiveRequest | None, num_shown: int) -> dict[str, Any]:
    """Nothing, if the request has not asked for it."""
    known = None if sample.trace is None else sample.trace.timeline
    news = None if live is None or sample.end is not None else live.trace.timeline
    if known is None and news is None:
        return {}
    return {"timeline": timeline_fields(known or Timeline(), news, num_shown)}


def _status(record: RequestRecord, sample: SampleRecord, live: LiveRequest | None) -> str:
    if sample.end is not None and sample.end.finish is not None:
        return "finished"
    if record.status != "live":
        return "failed"
    return "unknown" if live is None else live.status


def timing_fields(timings: RequestTimings) -> dict[str, float | None]:
    """Seconds by name."""
    return dataclasses.asdict(timings)


def _trace_fields(times: RequestTimes, trace: RequestTrace) -> dict[str, Any]:
    waits, decode = trace.waits, trace.decode
    return {
        "handover_seconds": max(0.0, trace.queued - times.received),
        "wait_slots_seconds": waits.slots,
        "wait_memory_seconds": waits.memory,
        "wait_step_seconds": waits.step,
        "wait_compile_seconds": waits.compile,
        "retracted_meanwhile": waits.num_retracted,
        "num_prefill_chunks": trace.num_chunks,
        "prefill_chunks": [
            {
                "after_seconds": chunk.time - times.received,
                "tokens": chunk.tokens,
                "step_tokens": chunk.step_tokens,
                "bucket_tokens": chunk.bucket_tokens,
                "padding_tokens": chunk.bucket_tokens - chunk.step_tokens,
                "seconds": chunk.seconds,
            }
            for chunk in trace.chunks
        ],
        "decode_steps": decode.steps,
        "decode_mean_rows": decode.rows / decode.steps if decode.steps else None,
        "decode_mean_bucket": decode.bucket_rows / decode.steps if decode.steps else None,
        "retractions": [
            {
                "after_seconds": lost.time - times.received,
                "lost_tokens": lost.tokens,
                "last_snapshot_tokens": lost.snapshot_tokens,
            }
            for lost in trace.retractions
        ],
        "snapshots": [
            {"after_seconds": hit.time - times.received, "slot": hit.slot, "cached_tokens": hit.tokens}
            for hit in trace.snapshots
        ],
    }


def describe_timings(timings: RequestTimings) -> str:
    """`queue 0.012 s, prefill 0.250 s, …`, as far as they are known."""
    known = [(name, value) for name, value in timing_fields(timings).items() if value is not None]
    return ", ".join(f"{name} {value:.3f} s" for name, value in known)


def _summarize(story: Story, timings: RequestTimings, queue: QueueState | None, max_running: int) -> str:
    """One line for a person."""
    trace = story.trace
    if trace is None:
        parts = [] if timings.queue is None else [f"waited {timings.queue:.2f} s"]
    else:
        parts = [_waited(timings, trace.waits, max_running, still=queue is not None)]
    if queue is not None:
        parts.append(_present(queue))
    if trace is not None and trace.compile_seconds >= 0.005:
        parts.append(f"{trace.compile_seconds:.2f} s waiting for programs to compile")
    if trace is not None and trace.num_chunks:
        parts.append(_prefill(story, timings, trace))
    if story.completion_tokens and trace is not None and trace.decode.steps:
        parts.append(_decode(story, timings, trace.decode))
    if story.num_retractions:
        times = "once" if story.num_retractions == 1 else f"{story.num_retractions} times"
        entries = [] if trace is None else trace.retractions
        lost = sum(entry.tokens for entry in entries)
        behind = " behind a snapshot" if any(entry.snapshot_tokens for entry in entries) else ""
        given_up = f", losing {lost} cached tokens{behind}" if lost else ""
        parts.append(f"retracted {times}{given_up}")
    return "; ".join(parts)


def _waited(timings: RequestTimings, waits: WaitTimes, max_running: int, *, still: bool) -> str:
    reasons = sorted(
        (
            (waits.slots, f"all {max_running} slots were in use"),
            (waits.memory, "KV full"),
            (waits.compile, "programs for more requests were not compiled yet"),
        ),
        reverse=True,
    )
    shown = [f"{text} ({seconds:.2f} s)" for seconds, text in reasons if seconds >= 0.01]
    if shown and waits.num_retracted:
        shown.append(f"{waits.num_retracted} retracted")
    why = f": {', '.join(shown)}" if shown else ""
    waited = max(waits.total, timings.queue or 0.0)
    return f"{'has ' if still else ''}waited {waited:.2f} s{why}"


def _present(queue: QueueState) -> str:
    place = f"number {queue.position} of {queue.length} in the queue"
    match queue.reason:
        case "memory":
            return f"{place}, needs {queue.pages_needed} pages of KV cache and {queue.pages_available} are free"
        case "slots":
            return f"{place}, all {queue.max_running} slots are in use"
        case "compile":
            return f"{place}, compiled programs allow {queue.open_running} of {queue.max_running} running requests"
        case "step":
            return f"{place}, a step is running"


def _prefill(story: Story, timings: RequestTimings, trace: RequestTrace) -> str:
    tokens = sum(chunk.tokens for chunk in trace.chunks)
    bucket = sum(chunk.bucket_tokens for chunk in trace.chunks)
    padding = 1 - sum(chunk.step_tokens for chunk in trace.chunks) / bucket
    seconds = "" if timings.prefill is None else f" in {timings.prefill:.2f} s"
    snapshot = f" (snapshot {trace.snapshots[0].slot})" if trace.snapshots else ""
    cached = f", {story.cached_tokens} from the cache{snapshot}" if story.cached_tokens else ""
    chunks = f"{trace.num_chunks} chunk{'s' if trace.num_chunks > 1 else ''}"
    return f"prefill of {tokens} tokens{cached}{seconds} ({chunks}, {padding:.0%} padding)"


def _decode(story: Story, timings: RequestTimings, decode: DecodeSteps) -> str:
    seconds = "" if timings.decode is None else f" in {timings.decode:.2f} s"
    rows, bucket = decode.rows / decode.steps, decode.bucket_rows / decode.steps
    return f"{story.completion_tokens} tokens{seconds} (average batch {rows:.1f}, average bucket {bucket:.1f})"
