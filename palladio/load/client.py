"""One measured request: when its first text came, and the time between any two pieces of text."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Literal

from palladio.load.http_client import ClientError, HttpClient, decode, describe_failure, first_model


@dataclasses.dataclass(slots=True)
class Answer:
    """One request's outcome; times in seconds since its start.

    Attributes:
        started: by `time.perf_counter`.
    """

    error: str | None = None
    first: float | None = None
    total: float = 0.0
    gaps: list[float] = dataclasses.field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    started: float = dataclasses.field(default_factory=time.perf_counter)
    _last: float = 0.0

    def hear(self, event: Mapping[str, Any]) -> None:
        """An event of its stream, as it comes."""
        usage = event.get("usage")
        if usage:
            self.prompt_tokens = usage["prompt_tokens"]
            self.completion_tokens = usage["completion_tokens"]
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if any(text_of(choice) for choice in event.get("choices", ())):
            now = time.perf_counter()
            if self.first is None:
                self.first = now - self.started
            else:
                self.gaps.append(now - self._last)
            self._last = now

    def end(self, error: str | None) -> None:
        """It is over, well or not."""
        self.total = time.perf_counter() - self.started
        self.error = error


@dataclasses.dataclass(frozen=True)
class Target:
    """A server under load.

    Attributes:
        extra: merged into every request body; its nulls remove fields that the server does not know.
        exact: an answer with another number of tokens than was asked for counts as failed.
    """

    base_url: str
    model: str = ""
    endpoint: Literal["completions", "chat"] = "completions"
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    api_key: str | None = None
    exact: bool = True

    def client(self) -> HttpClient:
        return HttpClient(self.base_url, self.api_key)

    @property
    def path(self) -> str:
        return "chat/completions" if self.endpoint == "chat" else "completions"

    def body(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        body = {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        content = {"messages": [{"role": "user", "content": prompt}]} if self.endpoint == "chat" else {"prompt": prompt}
        return {name: value for name, value in (body | content | self.extra).items() if value is not None}


async def find_model(target: Target, client: HttpClient) -> Target:
    """With the server's first model, where the target names none.

    Raises:
        ClientError: it lists none.
    """
    return target if target.model else dataclasses.replace(target, model=await first_model(client))


async def ask(target: Target, client: HttpClient, prompt: str, max_tokens: int) -> Answer:
    """Sends one request and reads its stream. Never raises for what the server does: see Answer.error."""
    body, answer = target.body(prompt, max_tokens), Answer()
    try:
        error = await _read(answer, target, client, body)
    except ClientError as failure:
        error = str(failure)
    if error is None and target.exact and answer.completion_tokens != max_tokens:
        error = f"asked for {max_tokens} tokens, got {answer.completion_tokens}"
    answer.end(error)
    return answer


async def _read(answer: Answer, target: Target, client: HttpClient, body: dict[str, Any]) -> str | None:
    """Returns why it failed."""
    async with client.stream("POST", target.path, body) as response:
        if response.status != 200:
            return describe_failure(response.status, await response.read())[:300]
        async for event in response.events():
            if "error" in event:
                return str(event["error"])[:300]
            answer.hear(event)
    return None


def text_of(choice: Mapping[str, Any]) -> str:
    """What one choice of an event says; reasoning counts."""
    delta = choice.get("delta") or {}
    return choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""


async def count_tokens(target: Target, client: HttpClient, text: str) -> int:
    """By the server's own /tokenize; without one, a word counts as a token."""
    try:
        body = {"model": target.model, "prompt": text}
        status, content = await client.ask("POST", f"{client.root}/tokenize", body)
        return int(decode(content)["count"]) if status == 200 else len(text.split())
    except (ClientError, KeyError, TypeError):
        return len(text.split())
