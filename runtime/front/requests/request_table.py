"""The requests of a front that have not ended: each caller's stream of outputs, and the samples that feed it."""

import asyncio
import itertools
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence

from palladio.runtime.front.requests.crash_dump import CrashRecorder
from palladio.runtime.front.requests.engine_protocol import FastPath
from palladio.runtime.front.requests.intake import LengthLimit
from palladio.runtime.front.requests.samples import SampleProcessor, merge_outputs, output_cost
from palladio.runtime.interface.errors import (
    DeadlineError,
    EngineDeadError,
    GenerationError,
    InvalidRequestError,
    PalladioError,
)
from palladio.runtime.interface.messages.calls import StepOutputs
from palladio.runtime.interface.outputs.request_output import RefusedOutputError, RequestOutput
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

MERGE_AT = 64  # outputs that wait for a slow reader before they are merged; each holds hundreds of bytes
FEW = 16  # outputs that are not merged: a step of four requests may give each four tokens
MERGE_SHARE = 16  # of many tokens that are merged already, so large a part is new at the next time: copying them costs
MAX_TAKEN = 4096  # tokens that a reader gets in one go (see output_cost): writing more would stop other streams
MAX_SENT = 1 << 18  # token ids that go to the engine before other tasks of the event loop run: some milliseconds
SAMPLE_SIZE = 1 << 10  # token ids that a sample's other parameters count as
MAX_CRASHES = 2  # a request that was in the engine at this many crashes may be their cause

logger = logging.getLogger(__name__)


class Stream:
    """Outputs on their way to one caller of generate. A slow reader delays no other: its outputs are merged into few a
    sample, which are as large as the samples' tokens.

    Attributes:
        unfinished: requests of the samples that have not ended, by engine-side id, in order.
        yielded: there was an output besides progress of the prefill; so it can't begin anew.
        num_crashes: how often the engine failed while it had this request.
    """

    def __init__(self, unfinished: dict[str, GenerationRequest]) -> None:
        self.pending: list[RequestOutput] = []
        self.error: PalladioError | None = None
        self.unfinished = unfinished
        self.yielded = False
        self.num_crashes = 0
        self._merge_at = MERGE_AT
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None  # its reader; an Event would cost each token twice as much
        self._fast_path: FastPath | None = None

    @property
    def is_over(self) -> bool:
        """Nothing comes any more, and all that came was taken."""
        return not self.unfinished and not self.pending and self.error is None

    def attach(self, fast_path: FastPath) -> None:
        """Let a fast path take outputs while the reader waits; see EngineClient.attach."""
        self._fast_path = fast_path

    def put(self, output: RequestOutput) -> None:
        """Hands an output on. Raises what its fast path raises."""
        if output.progress is None:
            self.yielded = True
        if self._fast_path is not None and output.finish is None:
            waiting = self._waiting
            if waiting is not None and not waiting.done() and self._fast_path(output):
                return
        self.pending.append(output)
        if len(self.pending) >= self._merge_at:
            self.pending = merge_outputs(self.pending, MAX_TAKEN)
            num_tokens = sum(len(output.token_ids) for output in self.pending)
            self._merge_at = len(self.pending) + max(MERGE_AT, len(self.pending), num_tokens // MERGE_SHARE)
        self._wake()

    def fail(self, error: PalladioError) -> None:
        self.error = self.error or error
        self._wake()

    def end(self, engine_id: str) -> None:
        """A sample has ended."""
        del self.unfinished[engine_id]

    def drop(self) -> list[str]:
        """No sample goes on. Returns the engine-side ids of unfinished ones."""
        engine_ids = list(self.unfinished)
        self.unfinished.clear()
        return engine_ids

    def note_crash(self) -> None:
        """The engine failed."""
        self.num_crashes += 1

    async def take(self) -> list[RequestOutput]:
        """Waits for outputs; of many that have come meanwhile, it takes the first, and the others remain.

        Raises:
            PalladioError: the stream failed; outputs that came before come first.
        """
        if not self.pending and self.error is None:
            self._waiting = self._loop.create_future()
            await self._waiting
        if not self.pending and self.error is not None:
            raise self.error
        pending = self.pending if len(self.pending) <= FEW else merge_outputs(self.pending, MAX_TAKEN)
        costs = itertools.accumulate(map(output_cost, pending))
        count = next((place for place, cost in enumerate(costs, 1) if cost >= MAX_TAKEN), len(pending))
        self.pending, self._merge_at = pending[count:], len(pending) - count + MERGE_AT
        if self.pending:
            await asyncio.sleep(0)  # other streams run before the next part
        return pending[:count]

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():  # done: its reader was cancelled
            waiting.set_result(None)


class RequestTable:
    """All streams. Methods that end samples return the engine-side ids that the engine must abort.

    Args:
        recorder: records all samples; None: there are no crash dumps.

    Attributes:
        idle: set while there are no streams.
    """

    def __init__(self, recorder: CrashRecorder | None) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self._recorder = recorder
        self._streams: dict[str, Stream] = {}
        self._samples: dict[str, tuple[Stream, SampleProcessor]] = {}  # by engine-side id

    def open(self, request_id: str, samples: Sequence[GenerationRequest], tokenizer: Tokenizer | None) -> Stream:
        """Expects outputs of these samples.

        Raises:
            InvalidRequestError: the id is in use.
        """
        if request_id in self._streams:
            raise InvalidRequestError(f"a request with id {request_id!r} is already running", param="request_id")
        stream = self._streams[request_id] = Stream({sample.request_id: sample for sample in samples})
        self.idle.clear()
        for index, sample in enumerate(samples):
            self._samples[sample.request_id] = stream, SampleProcessor(request_id, index, sample, tokenizer)
        if self._recorder is not None:
            self._recorder.begin(samples)
        return stream

    async def send(
        self,
        samples: Sequence[GenerationRequest],
        send: Callable[[GenerationRequest], None],
        is_ready: Callable[[], bool],
    ) -> None:
        """Sends the samples that have not ended, as long as the engine is ready. Pauses for other tasks of the event
        loop in between, because each message holds the whole prompt."""
        size = 0
        for sample in samples:
            if is_ready() and sample.request_id in self._samples:
                send(sample)
            size += SAMPLE_SIZE + len(sample.prompt_ids) + len(sample.params.allowed_token_ids or ())
            if size >= MAX_SENT:
                size = 0
                await asyncio.sleep(0)

    def attach(self, request_id: str, fast_path: FastPath) -> None:
        """Attach a fast path, see EngineClient.attach. Does nothing for a request that has ended."""
        if (stream := self._streams.get(request_id)) is not None:
            stream.attach(fast_path)

    def close(self, request_id: str) -> list[str]:
        """The caller has gone; what still runs is dropped."""
        dropped = self._drop(self._streams.pop(request_id))
        if not self._streams:
            self.idle.set()
        return dropped

    def abort(self, request_id: str | None) -> tuple[int, list[str]]:
        """Ends the streams with this id (None: all); returns how many were running, too."""
        names = list(self._streams) if request_id is None else [request_id]
        streams = [self._streams[name] for name in names if name in self._streams]
        streams = [stream for stream in streams if stream.unfinished]
        return len(streams), [engine_id for stream in streams for engine_id in self._end_samples(stream)]

    def running(self, request_id: str) -> dict[int, str]:
        """The samples that have not ended: which of the n → the engine-side id."""
        stream = self._streams.get(request_id)
        engine_ids = () if stream is None else tuple(stream.unfinished)
        return {self._samples[name][1].index: name for name in engine_ids if name in self._samples}

    def process(self, message: StepOutputs) -> list[str]:
        """Hands the engine's outputs to their streams."""
        stopped: list[str] = []
        begin = 0
        for plain in message.plain:
            self._process(message.outputs[begin : plain.place], stopped)
            begin = plain.place
            for engine_id, token_ids in plain.by_request():
                if (sample := self._samples.get(engine_id)) is not None:  # else it was aborted meanwhile
                    self._hand_on(engine_id, sample, token_ids, stopped)
        self._process(message.outputs[begin:], stopped)
        return stopped

    def _process(self, outputs: Sequence[TokenOutput], stopped: list[str]) -> None:
        for output in outputs:
            engine_id = output.request_id
            sample = self._samples.get(engine_id)
            if sample is None:
                continue  # aborted while this was on its way
            stream, processor = sample
            if stream.yielded or output.finish is None or not output.finish.status:
                self._hand_on(engine_id, sample, output, stopped)
                continue
            error = output.finish.error("the engine refused the request")
            if output.times is not None:  # it was in the engine's queue, at least
                error.__cause__ = RefusedOutputError(processor.process(output))
            stream.fail(error)  # the reader's end drops the other samples
            self._end(stream, engine_id, output.finish)

    def _hand_on(
        self, engine_id: str, sample: tuple[Stream, SampleProcessor], new: TokenOutput | list[int], stopped: list[str]
    ) -> None:
        """Give a stream what is new of one of its samples.

        Args:
            stopped: gets the sample's id, if it ends here and the engine does not know.
        """
        stream, processor = sample
        try:
            result = processor.process(new)
            if self._recorder is not None:
                self._recorder.add_tokens(engine_id, result.token_ids)
            if result.finish is None:
                stream.put(result)
                return
        except Exception:
            error_id = uuid.uuid4().hex  # the error may contain other clients' data: it is for the log alone
            logger.exception("error %s: cannot process the output of request %s", error_id, engine_id)
            details = f"the server's log has the details under id {error_id}"
            stream.fail(GenerationError(f"the output of the request could not be processed; {details}"))
            del self._samples[engine_id]  # it stays unfinished, so that the engine aborts it
            return
        self._end(stream, engine_id, result.finish)
        if not isinstance(new, TokenOutput) or new.finish is None:
            stopped.append(engine_id)
        stream.put(result)

    def fail_all(self, error: PalladioError) -> None:
        """The engine ended for good."""
        for stream in self._streams.values():
            stream.fail(error)
        self._samples.clear()

    def fail_unfinished(self, error: PalladioError) -> list[str]:
        """Fail the streams that have not ended, after what they have."""
        failed = [stream for stream, _ in self._kept()]
        for stream in failed:
            stream.fail(error)
        return [engine_id for stream in failed for engine_id in self._drop(stream)]

    def fail_served(self, error: EngineDeadError) -> tuple[int, int]:
        """Fail streams after a crash, before the engine is started again: streams that have had output, requests that
        were in too many crashes, and lines of batches, whose crashes their batch counts. Returns how many these are,
        and how many are kept."""
        begun = list(self._kept())
        num_failed = 0
        for stream, request in begun:
            stream.note_crash()
            if stream.yielded or request.options.background:
                stream.fail(error)
            elif stream.num_crashes >= MAX_CRASHES:
                stream.fail(
                    EngineDeadError(
                        f"{error}; the engine failed {stream.num_crashes} times while this request was waiting"
                    )
                )
            else:
                continue
            num_failed += 1
            self._drop(stream)
        return num_failed, len(begun) - num_failed

    def expire(self, now: float) -> None:
        """Ends the streams whose time is up while there is no engine to do it.

        Args:
            now: seconds since the epoch.
        """
        for stream, request in self._kept():
            timeout = request.options.timeout
            if timeout is not None and now >= request.received + timeout:
                stream.fail(
                    DeadlineError(
                        f"The request did not finish within its timeout of {timeout:g} s (the engine is being "
                        "restarted); raise timeout (or --request-timeout)"
                    )
                )
                self._drop(stream)

    def requests_to_resend(self, room: LengthLimit) -> list[GenerationRequest]:
        """The samples that the new engine needs, in the order of their arrival.

        Args:
            room: the new engine's; a request that does not fit any more fails.
        """
        for stream, request in self._kept():
            num_tokens = len(request.prompt_ids) + (request.params.max_tokens or 0)
            if num_tokens > room.limit:
                stream.fail(
                    EngineDeadError(
                        f"the engine was restarted with less memory: {num_tokens} tokens of prompt and output exceed "
                        f"{room.name} ({room.limit} tokens)"
                    )
                )
                self._drop(stream)
        return [request for stream, _ in self._kept() for request in stream.unfinished.values()]

    def _kept(self) -> Iterator[tuple[Stream, GenerationRequest]]:
        """Streams that wait for samples, and one of these; the samples of a stream differ in their seeds only."""
        for stream in list(self._streams.values()):
            if stream.unfinished and stream.error is None:
                yield stream, next(iter(stream.unfinished.values()))

    def _end_samples(self, stream: Stream) -> list[str]:
        """Ends the stream's samples for its reader, with what they have."""
        for engine_id in stream.unfinished:
            if engine_id in self._samples:
                stream.put(self._samples[engine_id][1].abort())
        return self._drop(stream)

    def _drop(self, stream: Stream) -> list[str]:
        engine_ids = stream.drop()
        for engine_id in engine_ids:
            self._samples.pop(engine_id, None)
            if self._recorder is not None:
                self._recorder.end(engine_id, FinishReason("abort"))
        return engine_ids

    def _end(self, stream: Stream, engine_id: str, finish: FinishReason) -> None:
        del self._samples[engine_id]
        stream.end(engine_id)
        if self._recorder is not None:
            self._recorder.end(engine_id, finish)
