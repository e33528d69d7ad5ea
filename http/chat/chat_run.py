"""ChatRun: one chat request on the engine. Every route that holds a conversation translates to and from it."""

import dataclasses
import time
from collections.abc import Callable
from typing import Self

from palladio.http.chat.chat_job import ChatJob
from palladio.http.chat.chat_output import ChatMessage
from palladio.http.generation.call import Call
from palladio.http.generation.choices import Choice, Usage, collect
from palladio.http.generation.context import Context
from palladio.http.generation.generation import OutputStream, check_abort
from palladio.http.generation.sampling import default_length, request_name
from palladio.http.prompts.text_encoder import run_encoding
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.runtime.front.sglang_api import Job
from palladio.runtime.interface.outputs import RequestOutput
from palladio.runtime.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class ChatAnswer:
    """Attributes:
    choices: the samples, and messages what is made of their texts, by index.
    """

    choices: list[Choice]
    messages: list[ChatMessage]
    usage: Usage


@dataclasses.dataclass(frozen=True, slots=True)
class ChatRun:
    """Attributes:
    name: the request's id.
    received: when it came, in seconds since the epoch.
    """

    context: Context
    call: Call
    chat: ChatJob
    stream: OutputStream
    name: str
    received: float

    @classmethod
    async def prepare(
        cls, context: Context, call: Call, body: ChatRequest, *, reasoning_is_optional: bool = False
    ) -> Self:
        """Everything up to the engine.

        Args:
            reasoning_is_optional: see `ReasoningPlan.of`.

        Raises:
            EngineNotReadyError, EngineDeadError: no engine runs.
            ModelNotFoundError: it is not the model that is served.
            InvalidRequestError: a field is wrong, or has no effect with this model; or it makes embeddings.
        """
        context.require_generation()
        received = time.time()
        origin = call.origin(no_logs=body.no_logs, log_metrics=body.log_metrics)
        context.model_name(body.model)
        name, options = request_name(body, call.request_id), call.options(body)
        chat = await ChatJob.prepare(context, body, call.names, reasoning_is_optional=reasoning_is_optional)
        length = default_length(chat.params, context.sampling_defaults)
        job = Job(name, chat.prompt.token_ids, chat.params, default_length=length, options=options)
        stream = OutputStream(context, [job], name=name, received=received, origin=origin)
        return cls(context, call, chat, stream, name, received)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.context.tokenizer

    def renewed(self) -> Self:
        """The same once more, for one that the engine has refused.

        Raises:
            PalladioError: it does not fit the engine any more.
        """
        return dataclasses.replace(self, stream=self.stream.renewed())

    async def start(self) -> OutputStream:
        """Its outputs as they come, the first of which is there.

        Raises:
            PalladioError: what went wrong before the first output.
            HttpError: the client went away.
        """
        return await self.call.wait(self.stream.start())

    async def collect(self) -> ChatAnswer:
        """Waits for all of it.

        Raises:
            PalladioError: what went wrong.
            HttpError: the client went away.
        """
        choices, usage = await self.call.wait(collect(self.stream))
        size = sum(len(choice.text) for choice in choices)
        return await run_encoding(lambda: self._read(choices, usage), size)

    async def feed(self, write: Callable[[RequestOutput], object]) -> None:
        """Waits for all of it, and hands each output on as it comes.

        Raises:
            PalladioError: what went wrong.
            HttpError: the client went away.
        """
        await self.call.wait(self._feed(write))

    async def _feed(self, write: Callable[[RequestOutput], object]) -> None:
        async with await self.stream.start():
            if self.stream.first is not None:
                write(self.stream.first)
            async for output in self.stream.rest:
                self.stream.observe(output)
                check_abort(output)
                write(output)

    def _read(self, choices: list[Choice], usage: Usage) -> ChatAnswer:
        messages = [ChatMessage.read(self.chat.plan.new_parser(), choice.text) for choice in choices]
        for choice in choices:
            counter = self.chat.plan.new_counter(self.tokenizer, self.chat.params)
            if counter is not None:
                counter.add(choice.token_ids)
                usage.reasoning[choice.index] = counter.count
        return ChatAnswer(choices, messages, usage)
