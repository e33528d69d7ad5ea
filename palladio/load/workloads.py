"""Prompts for a server under load: of one length, of drawn lengths, with a shared beginning, or from a data set."""

import dataclasses
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, get_args

from palladio.load.client import Target, count_tokens
from palladio.load.http_client import HttpClient
from palladio.runtime.interface.errors import ConfigError

_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother"
)
WORDS: Final = tuple(_WORDS.split())
Kind = Literal["sharegpt", "random", "prefix"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

# Of lengths in tokens: log-normal, with the means that vLLM's benchmark of ShareGPT prints (about 220 and 190); the
# spreads are a guess at its long tails. See benchmarks/engine/padding.py.
_SHAREGPT_PROMPT, _SHAREGPT_OUTPUT = (4.75, 1.3), (4.75, 1.0)
_SHORTEST, _LONGEST = 4, 1024
_SAMPLE = 400  # words that are counted to know how many make a token


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    prompt: str
    max_tokens: int


@dataclasses.dataclass(frozen=True)
class Workload:
    """Requests of one kind and one length.

    Attributes:
        prompt_tokens: length of each prompt, about; shared_tokens of them are the same in all.
        concurrency: requests in flight at once.
    """

    name: str
    requests: int
    max_tokens: int
    prompt_tokens: int
    concurrency: int
    shared_tokens: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Mix:
    """What users of a kind ask for.

    Attributes:
        prompt_tokens, output_tokens: means; of random, lengths are from half of that to one and a half times that.
        shared_tokens: the same beginning of all prompts.
        dataset: a file of conversations in ShareGPT's JSON, instead of made-up words.
    """

    kind: Kind = "sharegpt"
    prompt_tokens: int = 512
    output_tokens: int = 128
    shared_tokens: int = 0
    dataset: Path | None = None

    def lengths(self, count: int, rng: random.Random) -> Iterator[tuple[int, int]]:
        """Yield lengths of prompts (without shared beginnings) and of outputs, in tokens."""
        for _ in range(count):
            match self.kind:
                case "sharegpt":
                    drawn = (rng.lognormvariate(*_SHAREGPT_PROMPT), rng.lognormvariate(*_SHAREGPT_OUTPUT))
                    yield _clip(drawn[0]), _clip(drawn[1])
                case "random":
                    yield _around(self.prompt_tokens, rng), _around(self.output_tokens, rng)
                case "prefix":
                    yield max(1, self.prompt_tokens - self.shared_tokens), self.output_tokens


async def make_asks(target: Target, client: HttpClient, mix: Mix, count: int, seed: int) -> list[Ask]:
    """
    Args:
        seed: another one makes other prompts, of which a server has cached none.

    Raises:
        ConfigError: the data set cannot be read.
    """
    rng = random.Random(f"{mix.kind} {seed}")
    if mix.dataset is not None:
        return _from_dataset(mix.dataset, count, rng)
    sample = [rng.choice(WORDS) for _ in range(_SAMPLE)]
    words_a_token = _SAMPLE / max(1, await count_tokens(target, client, " ".join(sample)))
    shared = await make_text(target, client, mix.shared_tokens, rng) + " " if mix.shared_tokens else ""
    asks = []
    for number, (prompt, output) in enumerate(mix.lengths(count, rng)):
        words = [rng.choice(WORDS) for _ in range(max(1, round(prompt * words_a_token) - 1))]
        asks.append(Ask(f"{shared}{seed}.{number} {' '.join(words)}", output))
    return asks


async def make_text(target: Target, client: HttpClient, tokens: int, rng: random.Random) -> str:
    """Words of about `tokens` tokens: within one word of it where the server counts."""
    words = [rng.choice(WORDS) for _ in range(tokens)]
    count = await count_tokens(target, client, " ".join(words))
    words = words[: max(1, round(tokens * tokens / max(count, 1)))]
    for _ in range(8):
        excess = await count_tokens(target, client, " ".join(words)) - tokens
        if excess > 0 and len(words) > 1:
            words = words[: -max(1, excess // 2)]
        elif excess < -2:
            words += [rng.choice(WORDS) for _ in range(max(1, -excess // 2))]
        else:
            break
    return " ".join(words)


async def make_prompts(target: Target, client: HttpClient, workload: Workload, seed: int) -> list[str]:
    """Prompts of one length."""
    rng = random.Random(f"{workload.name} {seed}")
    shared = await make_text(target, client, workload.shared_tokens, rng) if workload.shared_tokens else ""
    own = workload.prompt_tokens - workload.shared_tokens
    template = (await make_text(target, client, own, rng)).split()
    return [f"{shared} {i} " + " ".join(rng.sample(template, len(template))) for i in range(workload.requests)]


def _from_dataset(path: Path, count: int, rng: random.Random) -> list[Ask]:
    """Take the first two turns of conversations; the second gives the length of the answer."""
    try:
        conversations = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--dataset {path}: {error}") from error
    pairs = [pair for pair in map(_pair, conversations if isinstance(conversations, list) else ()) if pair is not None]
    if not pairs:
        raise ConfigError(
            f"--dataset {path} has no conversations: a JSON list of "
            '{"conversations": [{"from": "human", "value": …}, {"from": "gpt", "value": …}]} is expected'
        )
    chosen = rng.choices(pairs, k=count) if len(pairs) < count else rng.sample(pairs, count)
    return [Ask(prompt, max(_SHORTEST, min(_LONGEST, math.ceil(len(answer) / 4)))) for prompt, answer in chosen]


def _pair(conversation: Any) -> tuple[str, str] | None:
    turns = conversation.get("conversations", ()) if isinstance(conversation, dict) else ()
    values = [turn.get("value") for turn in turns[:2] if isinstance(turn, dict)]
    texts = [value for value in values if isinstance(value, str)]
    return (texts[0], texts[1]) if len(texts) == 2 else None


def _clip(length: float) -> int:
    return round(min(max(length, _SHORTEST), _LONGEST))


def _around(mean: int, rng: random.Random) -> int:
    return rng.randint(max(1, mean // 2), max(1, mean + mean // 2))
