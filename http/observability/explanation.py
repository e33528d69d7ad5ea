"""A request's story as JSON and as a sentence: where its time went, and why."""

import dataclasses
from typing import Any

from palladio.http.observability.request_record import RequestRecord, SampleRecord
from palladio.runtime.interface.messages import LiveRequest
from palladio.runtime.interface.outputs import RequestOutput, RequestTimes
from palladio.runtime.interface.request_timings import RequestTimings
from palladio.runtime.interface.request_trace import DecodeSteps, QueueState, RequestTrace, WaitTimes


@dataclasses.dataclass(frozen=True, slots=True)
class _Explanation:
    """What is known of a sample, ended or not."""

    times: RequestTimes
    trace: RequestTrace | None
    timings: RequestTimings
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    num_retractions: int

    @classmethod
    def of_end(cls, end: RequestOutput) -> "_Explanation | None":
        if end.times is None:
            return None
        counts = (end.prompt_tokens, end.completion_tokens, end.cached_tokens, end.num_retractions)
        return cls(end.times, end.trace, RequestTimings.of_output(end), *counts)

    @classmethod
    def of_live(cls, live: LiveRequest) -> "_Explanation":
        counts = (live.prompt_tokens, live.completion_tokens, live.cached_tokens, live.num_retractions)
        return cls(live.times, live.trace, RequestTimings.of(live.times, live.trace), *counts)


def explain_record(record: RequestRecord, live: dict[int, LiveRequest], max_running: int) -> dict[str, Any]:
    """The answer of /v1/requests/{id}/explain.

    Args:
        live: what the engine says of samples that have not ended, by their index in the request.
        max_running: requests that run at once, at most.
    """
    samples = [
        _sample(record, index, sample, live.get(index), max_running) for index, sample in enumerate(record.samples)
    ]
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
    story = _Explanation.of_live(live) if live is not None else None
    if sample.end is not None:
        story = _Explanation.of_end(sample.end)
    answer: dict[str, Any] = {"index": index, "status": _status(record, sample, live)}
    if sample.end is not None and sample.end.finish is not None:
        answer["finish_reason"] = sample.end.finish.type
    if story is None:
        if record.ended is None:
            return answer | {"summary": "the engine has nothing to say about it"}
        return answer | {"summary": f"nothing had come of it after {record.ended - record.received:.2f} s"}
    answer["summary"] = _summarize(story, None if live is None or sample.end is not None else live.queue, max_running)
    answer |= {f"{name}_seconds": value for name, value in timing_fields(story.timings).items()}
    answer |= {
        "prompt_tokens": story.prompt_tokens,
        "completion_tokens": story.completion_tokens,
        "cached_tokens": story.cached_tokens,
        "num_retractions": story.num_retractions,
    }
    if story.trace is not None:
        answer |= _trace_fields(story.times, story.trace)
    if live is not None and live.queue is not None and sample.end is None:
        answer |= {f"queue_{name}": value for name, value in dataclasses.asdict(live.queue).items()}
    return answer


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
            {"after_seconds": lost.time - times.received, "lost_tokens": lost.tokens} for lost in trace.retractions
        ],
    }


def describe_timings(timings: RequestTimings) -> str:
    """`queue 0.012 s, prefill 0.250 s, …`, as far as they are known."""
    known = [(name, value) for name, value in timing_fields(timings).items() if value is not None]
    return ", ".join(f"{name} {value:.3f} s" for name, value in known)


def _summarize(story: _Explanation, queue: QueueState | None, max_running: int) -> str:
    """One line for a person."""
    parts: list[str] = []
    trace = story.trace
    if trace is not None:
        parts.append(_waited(story, trace.waits, max_running, still=queue is not None))
    elif story.timings.queue is not None:
        parts.append(f"waited {story.timings.queue:.2f} s")
    if queue is not None:
        parts.append(_present(queue))
    if trace is not None and trace.compile_seconds >= 0.005:
        parts.append(f"{trace.compile_seconds:.2f} s for programs to compile")
    if trace is not None and trace.num_chunks:
        parts.append(_prefill(story, trace))
    if story.completion_tokens and trace is not None and trace.decode.steps:
        parts.append(_decode(story, trace.decode))
    if story.num_retractions:
        lost = sum(entry.tokens for entry in trace.retractions) if trace is not None else 0
        given_up = f", giving up {lost} tokens of cache" if lost else ""
        parts.append(f"retracted {_times(story.num_retractions)}{given_up}")
    return "; ".join(parts)


def _waited(story: _Explanation, waits: WaitTimes, max_running: int, *, still: bool) -> str:
    reasons = sorted(
        (
            (waits.slots, f"all {max_running} slots were taken"),
            (waits.memory, "KV full"),
            (waits.compile, "programs for more requests were not compiled yet"),
        ),
        reverse=True,
    )
    shown = [f"{text} ({seconds:.2f} s)" for seconds, text in reasons if seconds >= 0.01]
    if shown and waits.num_retracted:
        shown.append(f"{waits.num_retracted} retracted")
    why = f": {', '.join(shown)}" if shown else ""
    waited = waits.total if story.timings.queue is None else max(waits.total, story.timings.queue)
    return f"{'has ' if still else ''}waited {waited:.2f} s{why}"


def _present(queue: QueueState) -> str:
    place = f"number {queue.position} of {queue.length} in the queue"
    match queue.reason:
        case "memory":
            return f"{place}, needs {queue.pages_needed} pages of KV cache and {queue.pages_available} are free"
        case "slots":
            return f"{place}, all {queue.max_running} slots are taken"
        case "compile":
            return f"{place}, the programs compiled so far hold {queue.open_running} requests of {queue.max_running}"
        case "step":
            return f"{place}, a step is under way"


def _prefill(story: _Explanation, trace: RequestTrace) -> str:
    tokens = sum(chunk.tokens for chunk in trace.chunks)
    bucket = sum(chunk.bucket_tokens for chunk in trace.chunks)
    padding = 1 - sum(chunk.step_tokens for chunk in trace.chunks) / bucket
    seconds = "" if story.timings.prefill is None else f" in {story.timings.prefill:.2f} s"
    cached = f", {story.cached_tokens} from the cache" if story.cached_tokens else ""
    chunks = f"{trace.num_chunks} chunk{'s' if trace.num_chunks > 1 else ''}"
    return f"prefill of {tokens} tokens{cached}{seconds} ({chunks}, {padding:.0%} padding)"


def _decode(story: _Explanation, decode: DecodeSteps) -> str:
    seconds = "" if story.timings.decode is None else f" in {story.timings.decode:.2f} s"
    rows, bucket = decode.rows / decode.steps, decode.bucket_rows / decode.steps
    return f"{story.completion_tokens} tokens{seconds} ({rows:.1f} requests a step, buckets of {bucket:.1f})"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
