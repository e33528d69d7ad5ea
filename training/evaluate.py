"""Held-out questions of each skill, asked of the server: what share of the answers is right.

    python -m training.evaluate                        # serves the embedded model
    python -m training.evaluate --base-url http://127.0.0.1:30000/v1 --json scores.json

Held out are ways to ask, names, number pairs and tool names: training sees none of them. Answers are greedy.
"""

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai

from palladio.utils import launch_server_cmd, terminate_process, wait_for_server
from training.chat import Chat
from training.checks import CHECKS, THOUGHTFUL, Answer
from training.corpus import make
from training.skills.stories import plain_story
from training.source import Source

MAX_TOKENS, CONCURRENCY, NUM_SHOWN = 250, 8, 2
FLAGS = f"--max-running-requests {CONCURRENCY} --context-length 2048 --chunked-prefill-size 256 --log-level warning"


def question(skill: str, number: int) -> Chat:
    """Held-out sample `number` of a skill, without thinking."""
    chat = make(skill, Source(f"held out/{skill}/{number}", held_out=True))
    assert isinstance(chat, Chat)
    turns = chat.turns[:1] if skill == "tool calls" else chat.turns
    return Chat(turns, chat.system, chat.tools)


class Examiner:
    """Asks a server questions.

    Args:
        base_url: URL of the server.
        samples: questions a skill.
    """

    def __init__(self, base_url: str, samples: int) -> None:
        self._client = openai.AsyncOpenAI(base_url=base_url, api_key="None", timeout=600)
        self._samples = samples
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._model = ""

    async def examine(self, skills: Sequence[str], shown: int) -> dict[str, float]:
        """The share of right answers by skill; with `shown` > 0, that many wrong ones a skill are printed."""
        self._model = (await self._client.models.list()).data[0].id
        scores: dict[str, float] = {}
        for skill in skills:
            scores[skill] = await self._score(skill, thinking=False, shown=shown)
            if skill in THOUGHTFUL:
                scores[f"{skill}, thinking"] = await self._score(skill, thinking=True, shown=shown)
        return scores

    async def perplexity(self) -> float:
        """Return the perplexity per token of held-out stories."""
        logprobs: list[float] = []
        for number in range(self._samples):
            text = plain_story(Source(f"held out/stories/{number}", held_out=True))
            done = await self._client.completions.create(
                model=self._model, prompt=text, max_tokens=0, echo=True, logprobs=0, temperature=0
            )
            found = done.choices[0].logprobs
            assert found is not None
            logprobs += [value for value in found.token_logprobs or [] if value is not None]
        return math.exp(-sum(logprobs) / len(logprobs))

    async def _score(self, skill: str, *, thinking: bool, shown: int) -> float:
        chats = [question(skill, number) for number in range(self._samples)]
        answers = await asyncio.gather(*(self._ask(chat, thinking=thinking) for chat in chats))
        check = CHECKS[skill]
        right = [
            check(chat, answer) and answer.finish_reason != "length" and (not thinking or bool(answer.reasoning))
            for chat, answer in zip(chats, answers, strict=True)
        ]
        wrong = [pair for pair, is_right in zip(zip(chats, answers, strict=True), right, strict=True) if not is_right]
        for chat, answer in wrong[:shown]:
            print(f"  {skill}: {chat.turns[-1].user!r}\n    wanted {chat.turns[-1].answer!r}\n    got    {answer}")
        return sum(right) / len(right)

    async def _ask(self, chat: Chat, *, thinking: bool) -> Answer:
        tools: Any = list(chat.tools) or openai.omit
        messages: Any = chat.messages()
        async with self._slots:
            done = await self._client.chat.completions.create(
                model=self._model,
                messages=messages,
                tools=tools,
                temperature=0,
                max_tokens=MAX_TOKENS,
                extra_body={"chat_template_kwargs": {"enable_thinking": thinking}},
            )
        choice = done.choices[0]
        call = None
        for made in choice.message.tool_calls or []:
            if made.type == "function":
                call = made.function.name, _parsed(made.function.arguments)
        reasoning = (choice.message.model_extra or {}).get("reasoning_content")
        return Answer(choice.message.content or "", choice.finish_reason, reasoning, call)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


@contextmanager
def served(base_url: str | None, model: str | None) -> Iterator[str]:
    """The server at `base_url`, or one that is started for this."""
    if base_url is not None:
        yield base_url
        return
    path = "" if model is None else f"--model-path {model}"
    command = f"{sys.executable} -m palladio serve {path} --host 127.0.0.1 {FLAGS}"
    process, port = launch_server_cmd(command, host="127.0.0.1")
    try:
        wait_for_server(f"http://127.0.0.1:{port}", timeout=600, process=process)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        terminate_process(process)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="of a running server; default: one is started")
    parser.add_argument("--model-path", help="what to start it with; default: the embedded model")
    parser.add_argument("--samples", type=int, default=50, help="questions a skill")
    parser.add_argument("--skills", nargs="*", default=list(CHECKS))
    parser.add_argument("--json", type=Path, help="write the scores here")
    parser.add_argument("--show-wrong", action="store_true", help=f"print {NUM_SHOWN} wrong answers a skill")
    args = parser.parse_args()
    asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> None:
    with served(args.base_url, args.model_path) as base_url:
        examiner = Examiner(base_url, args.samples)
        scores = await examiner.examine(args.skills, NUM_SHOWN if args.show_wrong else 0)
        perplexity = await examiner.perplexity()
    for skill, score in scores.items():
        print(f"{skill:30} {score:6.0%}")
    print(f"{'perplexity of held-out stories':30} {perplexity:6.1f}")
    if args.json:
        result = {"samples": args.samples, "scores": scores, "perplexity": round(perplexity, 1)}
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
