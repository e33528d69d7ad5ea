"""Kinds of requests beside generation itself: each is a short piece of a client's work, which must be answered rightly.

A new kind is a function that takes a Client and an entry of KINDS. It leaves nothing behind on the server: what it
stores, it deletes, and what it begins has ended when it returns.
"""

import asyncio
import base64
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx

from benchmarks.faults.soak_traffic import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    End,
    Limits,
    WrongAnswerError,
    random_ids,
    random_words,
)

TOOL_PARSERS = ("qwen25", "llama3", "mistral", "pythonic", "deepseekv3", "kimi_k2", "glm45", "qwen3_coder", "granite")
REASONING_PARSERS = ("qwen3", "deepseek-r1", "granite", "kimi", "mistral")
OVER = ("completed", "failed", "expired", "cancelled")  # states of a batch
POLL_SECONDS = 0.05


class Client:
    """One client's requests of all kinds.

    Args:
        rng: what it draws from.
        model_path: of the served model; weights are updated from there.
    """

    def __init__(self, http: httpx.AsyncClient, rng: random.Random, limits: Limits, model_path: str) -> None:
        self.http, self.rng, self.limits, self.model_path = http, rng, limits, model_path

    async def post(self, path: str, body: dict[str, Any], *others: int) -> Any:
        """Return the JSON of the answer.

        Args:
            others: allowed statuses besides 200.

        Raises:
            WrongAnswerError: another status.
        """
        return _json(await self.http.post(path, json=body), path, json.dumps(body), others)

    async def get(self, path: str, *others: int) -> Any:
        """Send a GET request, otherwise as `post`."""
        return _json(await self.http.get(path), path, "", others)

    async def delete(self, path: str, *others: int) -> Any:
        """Send a DELETE request, otherwise as `post`."""
        return _json(await self.http.delete(path), path, "", others)

    async def read_events(self, path: str, body: dict[str, Any], last: str) -> str:
        """Return the whole text of a stream, or, sometimes, the part before this client went away.

        Args:
            last: a part of the last event.
        """
        patience = self.rng.choice((1, 3, 1000, 1000))
        text = ""
        async with self.http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                raise WrongAnswerError(f"HTTP {response.status_code} for {path} {json.dumps(body)[:200]}")
            async for line in response.aiter_lines():
                text += line + "\n"
                patience -= 1
                if patience == 0:
                    return text
        if last not in text:
            raise WrongAnswerError(f"a stream of {path} ended without {last}: {text[-200:]}")
        return text

    def words(self, most: int = 20) -> str:
        return random_words(self.rng, self.rng.randint(1, most))

    def ids(self, most: int = 40) -> list[int]:
        return random_ids(self.rng, self.limits, self.rng.randint(2, most))

    def chat(self, max_tokens: int = 16) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": self.words()}], "max_tokens": max_tokens}


def _json(response: httpx.Response, path: str, sent: str, others: Sequence[int]) -> Any:
    if response.status_code != 200 and response.status_code not in others:
        raise WrongAnswerError(f"HTTP {response.status_code} for {path} {sent[:200]}: {response.text[:200]}")
    return response.json() if response.headers.get("content-type", "").startswith("application/json") else response.text


async def logprobs(client: Client) -> None:
    """Ask for logprobs of prompts and of outputs, in every route's own way."""
    top = client.rng.randint(0, 5)
    match client.rng.randrange(4):
        case 0:
            body = {"prompt": client.ids(300), "max_tokens": client.rng.choice((0, 4)), "echo": True, "logprobs": top}
            await client.post(COMPLETIONS, body)
        case 1:
            await client.post(CHAT, client.chat(4) | {"prompt_logprobs": top, "logprobs": True, "top_logprobs": top})
        case 2:
            body = {"input_ids": client.ids(300), "return_logprob": True, "logprob_start_len": client.rng.randrange(2)}
            body |= {"top_logprobs_num": top, "token_ids_logprob": client.ids(8)}
            await client.post(GENERATE, body | {"sampling_params": {"max_new_tokens": 8}})
        case _:
            pairs = {"query": client.words(), "items": [client.words(4) for _ in range(4)]}
            await client.post("/v1/score", pairs | {"label_token_ids": client.ids(4), "apply_softmax": True})


async def sampling(client: Client) -> None:
    """Fields that generation does not draw."""
    rng = client.rng
    params: dict[str, Any] = {"max_new_tokens": 32, "presence_penalty": rng.uniform(-1, 1)}
    params |= rng.choice(
        (
            {"stop_token_ids": client.ids(30)},
            {"stop_regex": rng.choice(("[aeiou]{2}", "the|and", r"\d+"))},
            {"allowed_token_ids": client.ids(60)},
            {"min_new_tokens": 8, "stop": client.words(2)},
            {"logit_bias": {str(token): rng.uniform(-5, 5) for token in client.ids(60)}},
        )
    )
    await client.post(GENERATE, {"text": [client.words() for _ in range(rng.randint(1, 4))], "sampling_params": params})


def schema_of(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """A random JSON schema."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(
            (
                {"type": "integer", "minimum": rng.randrange(100), "maximum": 100 + rng.randrange(1000)},
                {"type": "boolean"},
                {"enum": [random_words(rng, 2) for _ in range(rng.randint(1, 6))]},
                {"type": "string", "maxLength": rng.randint(1, 30)},
                {"type": "string", "pattern": f"^{rng.choice(('ab', 'x', 'cd'))}[a-z]{{1,{rng.randint(1, 12)}}}$"},
            )
        )
    if rng.random() < 0.2:
        return {"type": "array", "items": schema_of(rng, depth - 1), "maxItems": rng.randint(1, 4)}
    names = [f"{random_words(rng, 1)}_{rng.getrandbits(24):x}" for _ in range(rng.randint(1, 6))]
    properties = {name: schema_of(rng, depth - 1) for name in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def grammar_of(rng: random.Random) -> dict[str, Any]:
    """A field of `sampling_params`: a random grammar of a random form."""
    word = f"{random_words(rng, 1)}{rng.getrandbits(24):x}"
    match rng.randrange(6):
        case 0:
            return {"regex": f"{word}[0-9]{{{rng.randint(1, 20)}}}( [a-f]+)?"}
        case 1:
            return {"ebnf": f'root ::= "{word}" item+\nitem ::= [a-{rng.choice("kmz")}] | "{rng.getrandbits(16)}"'}
        case 2:
            structure = {"begin": f"<{word}>", "schema": schema_of(rng, 1), "end": "</a>"}
            return {"structural_tag": json.dumps({"structures": [structure], "triggers": [f"<{word}"]})}
        case _:
            return {"json_schema": json.dumps(schema_of(rng))}


async def grammars(client: Client) -> None:
    """New ones, and some of 50 that come again."""
    seed = client.rng.randrange(50) if client.rng.random() < 0.3 else client.rng.getrandbits(64)
    params = {"max_new_tokens": client.rng.choice((16, 64)), "temperature": 1.0} | grammar_of(random.Random(seed))
    await client.post(GENERATE, {"text": client.words(), "sampling_params": params})


async def tools(client: Client) -> None:
    """Forced calls with new schemas, streamed and whole; and texts for the parsers of calls."""
    schema = {"type": "object", "properties": {"value": schema_of(client.rng)}}
    tool = {"type": "function", "function": {"name": f"tool_{client.rng.getrandbits(32):x}", "parameters": schema}}
    body = client.chat(48) | {"tools": [tool], "tool_choice": "required"}
    match client.rng.randrange(3):
        case 0:
            await client.post(CHAT, body)
        case 1:
            await client.read_events(CHAT, body | {"stream": True}, "[DONE]")
        case _:
            text = f'<tool_call>\n{{"name": "f", "arguments": {{"a": "{client.words()}"}}}}\n</tool_call>'
            parser = client.rng.choice(TOOL_PARSERS)
            await client.post("/parse_function_call", {"text": text, "tools": [tool], "tool_call_parser": parser})


async def reasoning(client: Client) -> None:
    text = f"<think>{client.words()}</think>{client.words()}"
    parser = client.rng.choice(REASONING_PARSERS)
    await client.post("/separate_reasoning", {"text": text, "reasoning_parser": parser})
    await client.post(CHAT, client.chat() | {"reasoning_effort": client.rng.choice(("low", "high"))})


async def tokens(client: Client) -> None:
    text = client.words(200)
    ids = (await client.post("/tokenize", {"prompt": text}))["tokens"]
    if (await client.post("/detokenize", {"tokens": ids}))["text"] != text:
        raise WrongAnswerError(f"the tokens of {text[:100]!r} have another text")
    await client.post(f"{CHAT}/render", client.chat())


async def responses(client: Client) -> None:
    """A conversation of two, stored and deleted; a response in the background; a stream."""
    path, ask = "/v1/responses", {"input": client.words(), "max_output_tokens": 16}
    match client.rng.randrange(3):
        case 0:
            first = (await client.post(path, ask))["id"]
            second = (await client.post(path, ask | {"previous_response_id": first}))["id"]
            await client.get(f"{path}/{second}/input_items")
            for name in (second, first):
                await client.delete(f"{path}/{name}")
        case 1:
            name = (await client.post(path, ask | {"background": True}))["id"]
            if client.rng.random() < 0.3:
                await client.post(f"{path}/{name}/cancel", {})
            while (await client.get(f"{path}/{name}"))["status"] in ("queued", "in_progress"):
                await asyncio.sleep(POLL_SECONDS)
            await client.delete(f"{path}/{name}")
        case _:
            await client.read_events(path, ask | {"stream": True, "store": False}, "event: response.")


async def messages(client: Client) -> None:
    """Anthropic's routes."""
    body = client.chat()
    await client.post("/v1/messages/count_tokens", {"messages": body["messages"]})
    if client.rng.random() < 0.5:
        await client.post("/v1/messages", body)
    else:
        await client.read_events("/v1/messages", body | {"stream": True}, "message_stop")


async def ollama(client: Client) -> None:
    model = (await client.get("/api/tags"))["models"][0]["name"]
    body: dict[str, Any] = {"model": model, "options": {"num_predict": 16, "seed": client.rng.getrandbits(31)}}
    match client.rng.randrange(3):
        case 0:
            await client.read_events("/api/chat", body | {"messages": client.chat()["messages"]}, '"done":true')
        case 1:
            await client.post("/api/generate", body | {"prompt": client.words(), "stream": False})
        case _:
            schema = schema_of(client.rng, 1)
            await client.post("/api/generate", body | {"prompt": client.words(), "stream": False, "format": schema})


async def embeds(client: Client) -> None:
    """Prompts of embeddings."""
    rows, size = client.rng.randint(1, 60), client.limits.hidden_size
    data = base64.b64encode(client.rng.randbytes(rows * size * 2).replace(b"\x7f", b"\x3f").replace(b"\xff", b"\xbf"))
    prompt = {"data": data.decode(), "shape": [rows, size], "dtype": "bfloat16"}
    # Random numbers may be too large for the model, which the server then says.
    await client.post(GENERATE, {"input_embeds": prompt, "sampling_params": {"max_new_tokens": 8}}, 400)


async def embeddings(client: Client) -> None:
    """Ask a server with --is-embedding for embeddings."""
    texts = [client.words(60) for _ in range(client.rng.randint(1, 8))]
    match client.rng.randrange(4):
        case 0:
            await client.post("/v1/embeddings", {"input": texts, "encoding_format": "base64"})
        case 1:
            await client.post("/v1/score", {"text_1": texts[0], "text_2": texts})
        case 2:
            await client.post("/v1/rerank", {"query": texts[0], "documents": texts})
        case _:
            await client.post("/encode", {"text": texts[0]})


async def batches(client: Client) -> None:
    """A file, a batch of it to its end or its cancel, and its results; all files are deleted."""
    count = client.rng.randint(1, 20)
    lines = [
        {"custom_id": str(number), "method": "POST", "url": CHAT, "body": client.chat(8)} for number in range(count)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    upload = await client.http.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})
    name = _json(upload, "/v1/files", "", ())["id"]
    asked = {"input_file_id": name, "endpoint": CHAT, "completion_window": "24h"}
    batch = await client.post("/v1/batches", asked)
    if client.rng.random() < 0.2:
        await client.post(f"/v1/batches/{batch['id']}/cancel", {}, 409)
    while batch["status"] not in OVER:
        await asyncio.sleep(POLL_SECONDS)
        batch = await client.get(f"/v1/batches/{batch['id']}")
    if batch["status"] == "completed" and batch["request_counts"]["completed"] != count:
        raise WrongAnswerError(f"of {count} lines of a batch: {batch['request_counts']}")
    for file in filter(None, (batch["output_file_id"], batch["error_file_id"])):
        await client.get(f"/v1/files/{file}/content")
        await client.delete(f"/v1/files/{file}")
    await client.delete(f"/v1/files/{name}")


async def observing(client: Client) -> None:
    """Send the requests of a monitor and an operator."""
    await client.get("/metrics")
    await client.get("/dashboard/data?pages=true&batches=true")
    await client.get("/v1/loads")
    name = f"soak-explained-{client.rng.getrandbits(64):x}"
    await client.post(GENERATE, {"text": client.words(), "rid": name, "record_timeline": True})
    await client.get(f"/v1/requests/{name}/explain")


async def broken(client: Client) -> None:
    """A client that sends half of a request, or closes its connection as soon as it has sent one."""
    raw = json.dumps(client.chat(64)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: {client.http.base_url.host}\r\nContent-Type: application/json\r\n"
    sent = f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw
    _, writer = await asyncio.open_connection(client.http.base_url.host, client.http.base_url.port)
    writer.write(sent[: client.rng.choice((10, len(sent) // 2, len(sent) - 1, len(sent)))])
    await writer.drain()
    await asyncio.sleep(client.rng.choice((0.0, 0.01, 0.2)))
    writer.close()


async def long_prompts(client: Client) -> None:
    most = client.limits.max_model_len - 8
    ids = random_ids(client.rng, client.limits, client.rng.randint(most // 2, most))
    await client.post(COMPLETIONS, {"prompt": ids, "max_tokens": 4})


async def flushes(client: Client) -> None:
    """Empty caches or stop steps for a moment, with requests under way; then send one request."""
    if client.rng.random() < 0.5:
        await client.post("/flush_cache", {}, 400)
    else:
        await client.post("/pause_generation", {"mode": client.rng.choice(("retract", "in_place"))}, 400)
        await client.post("/continue_generation", {}, 400)
    await client.post(CHAT, client.chat())


async def weights(client: Client) -> None:
    """The same weights again, from their folder."""
    await client.post("/update_weights_from_disk", {"model_path": client.model_path}, 400, 409, 503)
    await client.post(CHAT, client.chat())


async def profiles(client: Client) -> None:
    """Profile three steps. Profiles run one at a time; others are refused."""
    await client.post("/start_profile", {"num_steps": 3}, 400, 409)
    await client.post(CHAT, client.chat())


Kind = Callable[[Client], Awaitable[None]]
# Kind → how it is done, and how often it is drawn beside the others.
KINDS: dict[str, tuple[Kind, float]] = {
    "logprobs": (logprobs, 8),
    "sampling": (sampling, 8),
    "grammars": (grammars, 12),
    "tools": (tools, 8),
    "reasoning": (reasoning, 4),
    "tokens": (tokens, 4),
    "responses": (responses, 6),
    "messages": (messages, 4),
    "ollama": (ollama, 4),
    "embeds": (embeds, 4),
    "embeddings": (embeddings, 8),
    "batches": (batches, 3),
    "observing": (observing, 4),
    "broken": (broken, 4),
    "long prompts": (long_prompts, 2),
    "flushes": (flushes, 2),
    "weights": (weights, 0.3),
    "profiles": (profiles, 0.2),
}


async def play(client: Client, kind: str) -> End:
    """One piece of work of that kind.

    Raises:
        WrongAnswerError: an answer was not right.
    """
    await KINDS[kind][0](client)
    return "answered"
