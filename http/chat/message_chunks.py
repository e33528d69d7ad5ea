"""Streams of chat messages that are more than text: reasoning and tool calls."""

import orjson

from palladio.http.chat.chat_output import MessageParser, MessagePiece, MessagePlan, delta_fields
from palladio.http.generation.choices import finish_fields
from palladio.http.generation.sse import UNFINISHED, ChatChunks, StreamSettings
from palladio.http.reasoning.counter import ReasoningCounter
from palladio.runtime.interface.outputs import FinishReason, RequestOutput
from palladio.runtime.interface.sampling_params import SamplingParams
from palladio.runtime.text.tokenizer import Tokenizer


class MessageChunks(ChatChunks):
    """Each piece of a message is a chunk; the first chunk has the logprobs and ids of the tokens since the last one.

    What the parsers hold back at the end comes before the chunk with the finish reason.
    """

    def __init__(
        self, settings: StreamSettings, tokenizer: Tokenizer, plan: MessagePlan, params: SamplingParams
    ) -> None:
        super().__init__(settings, tokenizer)
        self._quick = False
        self._plan = plan
        self._params = params
        self._counts = settings.include_usage or settings.continuous_usage
        self._parsers: dict[int, MessageParser] = {}
        self._counters: dict[int, ReasoningCounter] = {}

    def write(self, output: RequestOutput) -> bytes:
        if self._counts:
            self._count(output)
        return super().write(output)

    def _count(self, output: RequestOutput) -> None:
        counter = self._counters.get(output.index) or self._plan.new_counter(self._tokenizer, self._params)
        if counter is not None:
            self._counters[output.index] = counter
            counter.add(output.token_ids)
            self._usage.reasoning[output.index] = counter.count

    def _flush(self, output: RequestOutput) -> bytes:
        index = output.index
        parser = self._parsers.get(index)
        if parser is None:
            parser = self._parsers[index] = self._plan.new_parser()
        pieces = parser.feed(output.text)
        output.text = ""
        if output.finish is not None:
            pieces += parser.finish()
        if not pieces and self._has_tokens(output):
            pieces = [MessagePiece()]
        if not pieces:
            return b""
        logprobs, ids = self._of_tokens(output)
        chunks = b""
        for piece in pieces:
            chunks += self._chunk(self._piece_choice(index, piece, logprobs, ids))
            logprobs, ids = b"null", b""
        self._sent.add(index)
        return chunks

    def _piece_choice(self, index: int, piece: MessagePiece, logprobs: bytes, extra: bytes) -> bytes:
        if piece.content:
            return self._text_choice(index, orjson.dumps(piece.content), logprobs, extra)
        delta = orjson.dumps(delta_fields(piece))
        return b'{"index":%d,"delta":%b,"logprobs":%b%b%b}' % (index, delta, logprobs, UNFINISHED, extra)

    def _final_choice(self, index: int, finish: FinishReason) -> bytes:
        has_calls = self._parsers[index].num_calls > 0
        choice = {"index": index, "delta": {"reasoning_content": None}, "logprobs": None}
        return orjson.dumps(choice | finish_fields(finish, has_calls=has_calls))
