"""Random requests for a soak, how each may end, and what a right answer to it looks like."""

import asyncio
import dataclasses
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import httpx

from palladio.load.workloads import WORDS

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
FIELDS = ("cache_salt", "priority", "timeout")
TIMED_OUT = 504, "deadline_exceeded"
SLOW_SECONDS = 20.0  # of a slow reader, which then reads as fast as it can: a busy machine makes short pauses long
SOMETIMES: dict[str, Any] = {
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.05,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.2,
    "logit_bias": {"5": -100, "17": 3.5},
}

End = Literal["answered", "refused", "aborted", "timed out"]


class WrongAnswerError(Exception):
    """A request did not end as it has to."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The server's own limits; prompt and output together are at most max_model_len tokens."""

    max_model_len: int
    vocab_size: int
    hidden_size: int


@dataclasses.dataclass(frozen=True, slots=True)
class Draw:
    """A request, and what must be true of its answer.

    Attributes:
        num_choices: prompts × n.
        max_tokens: most output tokens of a choice; exact: none has fewer.
        may_time_out: it brings a timeout that may be too short.
    """

    kind: str
    path: str
    body: dict[str, Any]
    num_choices: int
    max_tokens: int
    exact: bool
    may_time_out: bool = False

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


@dataclasses.dataclass(slots=True)
class Choice:
    """Counts of what came; None: not asked for."""

    tokens: int | None = None
    logprobs: int | None = None
    finish: str | None = None


@dataclasses.dataclass(slots=True)
class Answer:
    """An answer of any route, streamed or not."""

    choices: dict[int, Choice] = dataclasses.field(default_factory=dict)
    completion_tokens: int | None = None
    cached_tokens: int = 0
    retractions: int = 0
    error: dict[str, Any] | None = None

    def take(self, path: str, event: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Adds a whole answer, or an event of a stream."""
        if isinstance(event, list):
            for i, part in enumerate(event):
                self._take_native(part, i)
        elif "error" in event:
            self.error = event["error"]
        elif path == GENERATE:
            self._take_native(event, event.get("index", 0))
        else:
            self._take_openai(event)

    def _take_native(self, event: dict[str, Any], index: int) -> None:
        """Each event of this route has everything so far."""
        meta = event["meta_info"]
        finish = meta["finish_reason"]
        logprobs = meta.get("output_token_logprobs")
        if index in self.choices and self.choices[index].finish is not None:
            raise WrongAnswerError(f"choice {index} goes on after its end")
        self.choices[index] = Choice(
            tokens=len(event["output_ids"]),
            logprobs=None if logprobs is None else len(logprobs),
            finish=None if finish is None else finish["type"],
        )
        if meta["completion_tokens"] != len(event["output_ids"]):
            raise WrongAnswerError(
                f"{len(event['output_ids'])} output_ids, completion_tokens {meta['completion_tokens']}"
            )
        self.cached_tokens += meta["cached_tokens"] if finish else 0
        self.retractions += meta["num_retractions"] if finish else 0

    def _take_openai(self, event: dict[str, Any]) -> None:
        for part in event["choices"]:
            choice = self.choices.setdefault(part["index"], Choice())
            if choice.finish is not None:
                raise WrongAnswerError(f"choice {part['index']} goes on after its end")
            if "token_ids" in part:
                choice.tokens = (choice.tokens or 0) + len(part["token_ids"])
            logprobs = part.get("logprobs")
            if logprobs is not None:
                new = logprobs["content"] if "content" in logprobs else logprobs["tokens"]
                choice.logprobs = (choice.logprobs or 0) + len(new)
            choice.finish = part["finish_reason"]
        if event.get("usage"):
            self.completion_tokens = event["usage"]["completion_tokens"]
            self.cached_tokens = (event["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    def check(self, draw: Draw, *, aborted: bool) -> None:
        """Raises WrongAnswerError if this is no right answer to `draw`; an aborted one may have fewer tokens."""
        if sorted(self.choices) != list(range(draw.num_choices)):
            raise WrongAnswerError(f"choices {sorted(self.choices)} instead of {draw.num_choices}")
        finishes = {"stop", "length", "abort"} if aborted else {"length"} if draw.exact else {"stop", "length"}
        for choice in self.choices.values():
            if choice.finish not in finishes:
                raise WrongAnswerError(f"finish_reason {choice.finish}")
            if choice.tokens is None:
                continue
            if choice.tokens > draw.max_tokens:
                raise WrongAnswerError(f"{choice.tokens} tokens, max_tokens {draw.max_tokens}")
            if draw.exact and choice.tokens != draw.max_tokens and choice.finish != "abort":
                raise WrongAnswerError(f"{choice.tokens} tokens with ignore_eos, max_tokens {draw.max_tokens}")
            if choice.logprobs is not None and choice.logprobs != choice.tokens:
                raise WrongAnswerError(f"{choice.logprobs} logprobs for {choice.tokens} tokens")
        counts = [choice.tokens for choice in self.choices.values()]
        if draw.path != GENERATE:
            if self.completion_tokens is None:
                raise WrongAnswerError("no usage")
            if None not in counts and sum(filter(None, counts)) != self.completion_tokens:
                raise WrongAnswerError(f"{counts} tokens came, usage says {self.completion_tokens}")


class Dice:
    """Draws requests. The shared prefixes are the same for every Dice of one soak."""

    def __init__(self, seed: str, shared_seed: str, limits: Limits, fields: Sequence[str]) -> None:
        self.rng = random.Random(seed)
        self._limits = limits
        self._fields = fields
        shared = random.Random(shared_seed)
        longest = limits.max_model_len // 8
        self._prefixes = [random_words(shared, count) for count in (longest // 4, longest // 2, longest, longest)]

    def draw(self) -> Draw:
        rng = self.rng
        path = rng.choice((CHAT, COMPLETIONS, GENERATE))
        long = path != CHAT and rng.random() < 0.08
        max_tokens = rng.choice((1, 4, 16, 32, 64, 200)) if not long else rng.choice((1, 8, 32))
        exact = rng.random() < 0.6
        n = 1 if long or rng.random() < 0.75 else rng.randint(2, 4)
        num_prompts = 2 if path != CHAT and not long and rng.random() < 0.1 else 1
        logprobs = rng.random() < 0.25
        body: dict[str, Any] = {"stream": rng.random() < 0.6} | self._prompt(path, long, num_prompts, max_tokens)
        sampling = {"n": n, "ignore_eos": exact} | self._sampling()
        if not exact and rng.random() < 0.3:
            sampling["stop"] = rng.choice(("a", [" the", "e"], "\n\n"))
        match path:
            case "/generate":
                body |= {"sampling_params": sampling | {"max_new_tokens": max_tokens}}
                if logprobs:
                    body |= {"return_logprob": True, "top_logprobs_num": rng.randint(0, 3)}
            case _:
                body |= sampling | {"max_tokens": max_tokens, "return_token_ids": rng.random() < 0.8}
                body |= {"stream_options": {"include_usage": True}} if body["stream"] else {}
                if logprobs:
                    body |= {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": rng.randint(0, 3)}
        may_time_out = self._add_fields(body)
        kind = path.removeprefix("/v1/") + (" stream" if body["stream"] else "")
        return Draw(kind, path, body, n * num_prompts, max_tokens, exact, may_time_out)

    def _prompt(self, path: str, long: bool, num_prompts: int, max_tokens: int) -> dict[str, Any]:
        rng = self.rng
        if long:
            most = self._limits.max_model_len - max_tokens
            ids = random_ids(rng, self._limits, rng.randint(most // 3, most))
            return {"input_ids" if path == GENERATE else "prompt": ids}
        texts = []
        for _ in range(num_prompts):
            own = random_words(rng, rng.randint(1, 30))
            texts.append(f"{rng.choice(self._prefixes)} {own}" if rng.random() < 0.5 else own)
        if path == CHAT:
            return {"messages": [{"role": "user", "content": texts[0]}]}
        return {"text" if path == GENERATE else "prompt": texts if num_prompts > 1 else texts[0]}

    def _sampling(self) -> dict[str, Any]:
        rng = self.rng
        if rng.random() < 0.4:
            return {"temperature": 0}
        params = {"temperature": rng.choice((0.3, 0.8, 1.2)), "seed": rng.randrange(2**63)}
        return params | {name: value for name, value in SOMETIMES.items() if rng.random() < 0.2}

    def _add_fields(self, body: dict[str, Any]) -> bool:
        """The optional fields; True if the request may run into its timeout."""
        rng = self.rng
        if "cache_salt" in self._fields and rng.random() < 0.3:
            body["cache_salt"] = rng.choice(("one", "two"))
        if "priority" in self._fields and rng.random() < 0.3:
            body["priority"] = rng.randint(-20, 20)
        if "timeout" not in self._fields or rng.random() > 0.2:
            return False
        body["timeout"] = rng.choice((0.05, 0.5, 2.0, 3600.0))
        return bool(body["timeout"] < 3600)


async def finish(client: httpx.AsyncClient, draw: Draw, dice: random.Random) -> tuple[End, Answer]:
    """Sends a request and reads it to its end, or goes away, or has it aborted.

    Raises:
        WrongAnswerError: it ended in another way than it may.
    """
    way = dice.choices(("read", "disconnect", "abort"), (70, 18, 12))[0]
    patience = dice.choice((0, 1, 2, 5, 20))  # events until the client goes away or aborts
    if not draw.streams:
        if way != "read":
            return await _leave(client, draw, seconds=dice.uniform(0.0, 0.5))
        response = await client.post(draw.path, json=draw.body)
        return _end_of(draw, response.status_code, response.json(), Answer())
    slowness = dice.choice((0.0, 0.0, 0.0, 0.0, 0.02))
    body = draw.body if way != "abort" else draw.body | {"rid": f"soak-{dice.getrandbits(64):x}"}
    answer, seen, aborted = Answer(), 0, False
    slow_until = time.monotonic() + SLOW_SECONDS
    async with client.stream("POST", draw.path, json=body) as response:
        if response.status_code != 200:
            return _end_of(draw, response.status_code, json.loads(await response.aread()), answer)
        async for event in _events(response):
            answer.take(draw.path, event)
            seen += 1
            if way == "disconnect" and seen > patience:
                return "aborted", answer
            if way == "abort" and seen > patience and not aborted:
                aborted = True
                (await client.post("/abort_request", json={"rid": body["rid"]})).raise_for_status()
            if slowness and time.monotonic() < slow_until:
                await asyncio.sleep(slowness)
    return _end_of_stream(draw, answer, aborted)


def _end_of_stream(draw: Draw, answer: Answer, aborted: bool) -> tuple[End, Answer]:
    if answer.error is not None:
        if draw.may_time_out and answer.error["code"] == TIMED_OUT[1]:
            return "timed out", answer
        raise WrongAnswerError(f"an error in the stream: {answer.error}")
    answer.check(draw, aborted=aborted)
    return "aborted" if any(choice.finish == "abort" for choice in answer.choices.values()) else "answered", answer


def _end_of(draw: Draw, status: int, body: Any, answer: Answer) -> tuple[End, Answer]:
    if status == 200:
        answer.take(draw.path, body)
        answer.check(draw, aborted=False)
        return "answered", answer
    if draw.may_time_out and (status, body["error"]["code"]) == TIMED_OUT:
        return "timed out", answer
    raise WrongAnswerError(f"HTTP {status}: {json.dumps(body)[:300]}")


async def _leave(client: httpx.AsyncClient, draw: Draw, seconds: float) -> tuple[End, Answer]:
    """Wait `seconds` for the whole answer, then close the connection."""
    try:
        async with asyncio.timeout(seconds):
            response = await client.post(draw.path, json=draw.body)
    except TimeoutError:
        return "aborted", Answer()
    return _end_of(draw, response.status_code, response.json(), Answer())


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream; raises WrongAnswerError if it breaks off."""
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data:"):
            yield json.loads(line[5:])
    raise WrongAnswerError("the stream ended without [DONE]")


def bad_requests(limits: Limits) -> list[tuple[str, Any, int]]:
    """(path, JSON body or raw text, status that it must get)."""
    long = [5] * (limits.max_model_len + 10)
    hello = [{"role": "user", "content": "Hello"}]
    return [
        (CHAT, {"messages": "Hello"}, 400),
        (CHAT, {"messages": []}, 400),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, 400),
        (CHAT, {"messages": hello, "max_tokens": "4"}, 400),
        (CHAT, {"messages": hello, "max_tokens": limits.max_model_len + 1}, 400),
        (CHAT, {"messages": hello, "temperature": -1}, 400),
        (CHAT, {"messages": hello, "temprature": 1}, 400),
        (CHAT, {"messages": hello, "n": 0}, 400),
        (CHAT, {"messages": hello, "stream": True, "stop": [1]}, 400),
        (CHAT, {"messages": [{"role": "user", "content": "word " * limits.max_model_len}]}, 400),
        (CHAT, {"messages": hello, "model": "no such model"}, 404),
        (CHAT, "{not json", 400),
        (CHAT, "[]", 400),
        (COMPLETIONS, {"prompt": long}, 400),
        (COMPLETIONS, {"prompt": long, "stream": True}, 400),
        (COMPLETIONS, {"prompt": []}, 400),
        (COMPLETIONS, {"prompt": [limits.vocab_size + 7]}, 400),
        (COMPLETIONS, {"prompt": [-1]}, 400),
        (COMPLETIONS, {"prompt": "Hello", "logprobs": 21}, 400),
        (COMPLETIONS, {"prompt": "Hello", "logit_bias": {"x": 1}}, 400),
        (COMPLETIONS, {}, 400),
        (GENERATE, {"text": "Hello", "sampling_params": {"temprature": 1}}, 400),
        (GENERATE, {"text": "Hello", "sampling_params": {"top_p": 2}}, 400),
        (GENERATE, {"text": "Hello", "input_ids": [5]}, 400),
        (GENERATE, {"input_ids": long}, 400),
        ("/abort_request", {}, 400),
        ("/v1/no_such_route", {}, 404),
    ]


async def send_bad(client: httpx.AsyncClient, bad: tuple[str, Any, int]) -> End:
    """Raises WrongAnswerError unless it is refused as it should be."""
    path, body, status = bad
    text = body if isinstance(body, str) else json.dumps(body)
    response = await client.post(path, content=text, headers={"content-type": "application/json"})
    if response.status_code != status:
        raise WrongAnswerError(f"HTTP {response.status_code} instead of {status} for {path} {text[:200]}")
    if set(response.json()["error"]) != {"message", "type", "param", "code"}:
        raise WrongAnswerError(f"not an OpenAI error body: {response.text[:200]}")
    return "refused"


def random_words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def random_ids(rng: random.Random, limits: Limits, count: int) -> list[int]:
    return [rng.randrange(300, min(limits.vocab_size, 4000)) for _ in range(count)]
