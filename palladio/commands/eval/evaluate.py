"""`palladio eval`: how well a model predicts a text, or does lm-eval's tasks, with any flags of `serve`."""

import argparse
import asyncio
import contextlib
import dataclasses
import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from palladio.cli.parsing import check_output, make_parser
from palladio.commands.eval.lm_eval_tasks import TASK_FLAGS, add_task_flags, run_tasks
from palladio.flags.gpu_memory import gpu_memory
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError, PalladioError
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.process_transport import ProcessTransport
from palladio.server.launch import read_command, report_error

USUAL_WINDOW = 2048  # tokens
TEXT_FLAGS = ("window", "stride", "against")  # of --perplexity only
_QUIET = "--log-level=warning"  # a line for each step would hide the results; the user's flag wins
AT_ONCE = 8  # windows that the engine has; it needs no more to be busy


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """Tokens that are computed together.

    Attributes:
        begin, end: of the text's tokens. scored: from which on they count; those before are context.
    """

    begin: int
    end: int
    scored: int


@dataclasses.dataclass(frozen=True, slots=True)
class Scores:
    """What a model said of a text.

    Attributes:
        logprobs: of each token that counts. num_windows, num_bytes: of the text.
    """

    logprobs: list[float]
    num_windows: int
    num_bytes: int

    @property
    def loss(self) -> float:
        """Nats a token."""
        return -math.fsum(self.logprobs) / len(self.logprobs)


def windows(num_tokens: int, size: int, stride: int) -> Iterator[Window]:
    """Overlapping windows, as transformers' guide has them: each token counts once, in the first that holds it."""
    scored = 0
    for begin in range(0, num_tokens, stride):
        end = min(begin + size, num_tokens)
        yield Window(begin, end, max(scored, begin + 1))  # nothing predicts a window's first token
        scored = end
        if end == num_tokens:
            return


def evaluate(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the command.

    Args:
        argv: its flags, and those of `serve`. environment: see `launch` in server/launch.py.

    Returns:
        The exit code: 0, 2 for a wrong flag or file, 130 after Ctrl-C, 1 for any other failure.
    """
    args, flags = parser().parse_known_args(argv)
    try:
        _check(args)
        if args.tasks is not None:
            config = read_command([_QUIET, *flags], environment).engine_config()
            return run_tasks(AsyncEngine(config, ProcessTransport(environment=gpu_memory(environment))), args)
        text = _read(args.perplexity)
        scores = _scores(flags, text, args, environment)
        _report("", scores)
        if args.against is not None:
            other = _scores([*flags, *shlex.split(args.against)], text, args, environment)
            _report(f"with {args.against}: ", other)
            _compare(scores, other)
    except PalladioError as error:
        return report_error(error)
    except KeyboardInterrupt:
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    found = make_parser(
        "eval",
        "Computes the perplexity of a text, or runs tasks of EleutherAI's lm-eval on the engine, without a server.",
        [
            "palladio eval --perplexity text.txt --model-path DIR",
            "palladio eval --perplexity text.txt --model-path DIR --against='--quantization int4'",
            "palladio eval --tasks gsm8k,hellaswag --limit 100 --model-path DIR     # needs: pip install lm-eval",
        ],
        usage="palladio eval (--perplexity FILE | --tasks NAMES) [flags] [flags of `palladio serve`]",
        more="Without --model-path it is about the embedded model.",
    )
    what = found.add_mutually_exclusive_group(required=True)
    what.add_argument("--perplexity", metavar="FILE", type=Path, help="a text, in UTF-8")
    what.add_argument("--tasks", metavar="NAMES", help="lm-eval's, with commas between them")
    text = found.add_argument_group("of --perplexity")
    help_of_window = f"tokens that are computed together (default: {USUAL_WINDOW:,}, or what the model takes)"
    text.add_argument("--window", metavar="TOKENS", type=int, help=help_of_window)
    help_of_stride = "tokens from one window to the next; the rest of a window is context (default: half of it)"
    text.add_argument("--stride", metavar="TOKENS", type=int, help=help_of_stride)
    help_of_against = "run it again with these flags too, and show how the log-probabilities differ"
    text.add_argument("--against", metavar="FLAGS", help=help_of_against)
    add_task_flags(found)
    return found


def _check(args: argparse.Namespace) -> None:
    """
    Raises:
        ConfigError: a flag is of the other kind of evaluation, or the file of results cannot be written.
    """
    others, kind = (TASK_FLAGS, "--tasks") if args.tasks is None else (TEXT_FLAGS, "--perplexity")
    for name in others:
        if vars(args)[name] not in (None, False):
            raise ConfigError(f"--{name.replace('_', '-')} is a flag of {kind}: leave it out")
    if args.json is not None:
        check_output("--json", args.json)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--perplexity: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--perplexity: {path} is not UTF-8 (byte {error.start}); give a text") from error


def _scores(flags: Sequence[str], text: str, args: argparse.Namespace, environment: Mapping[str, str]) -> Scores:
    config = read_command([_QUIET, *flags], environment).engine_config()
    return asyncio.run(_score(config, text, args.window, args.stride, environment))


async def _score(
    config: EngineConfig, text: str, size: int | None, stride: int | None, environment: Mapping[str, str]
) -> Scores:
    """
    Raises:
        ConfigError: a flag, the text or the checkpoint.
        EngineDeadError: the engine could not start, or failed.
    """
    engine = AsyncEngine(config, ProcessTransport(environment=gpu_memory(environment)))
    await engine.start()
    try:
        await engine.wait_ready()
        if engine.tokenizer is None:
            raise ConfigError("--skip-tokenizer-init: a text needs the tokenizer; leave the flag out")
        ids = engine.tokenizer.encode(text)
        if len(ids) < 2:
            raise ConfigError(f"--perplexity: the text has {len(ids)} tokens; at least 2 are needed")
        parts = list(windows(len(ids), *_sizes(size, stride, engine.info.context_length)))
        print(f"Scoring {len(ids):,} tokens in {len(parts)} windows", file=sys.stderr, flush=True)
        gate = asyncio.Semaphore(AT_ONCE)
        try:
            found = await asyncio.gather(*(_of_window(engine, gate, n, part, ids) for n, part in enumerate(parts)))
        except InvalidRequestError as error:
            raise ConfigError(f"the model cannot score texts: {error}") from error
    finally:
        await engine.shutdown()
    return Scores([logprob for logprobs in found for logprob in logprobs], len(parts), len(text.encode()))


def _sizes(size: int | None, stride: int | None, context_length: int) -> tuple[int, int]:
    """Return the tokens of a window, and from one window to the next.

    Raises:
        ConfigError: a flag is out of range.
    """
    size = min(USUAL_WINDOW, context_length) if size is None else size
    if not 2 <= size <= context_length:
        raise ConfigError(f"--window {size} must be in 2 … {context_length:,} (--context-length)")
    stride = size // 2 if stride is None else stride
    if not 1 <= stride < size:
        raise ConfigError(f"--stride {stride} must be in 1 … {size - 1:,}, less than --window")
    return size, stride


async def _of_window(
    engine: AsyncEngine, gate: asyncio.Semaphore, number: int, window: Window, ids: Sequence[int]
) -> list[float]:
    """Log-probabilities of the tokens that count."""
    params = SamplingParams(max_tokens=0, temperature=0.0, prompt_logprobs=0)
    request = GenerationRequest(str(number), list(ids[window.begin : window.end]), params)
    async with gate, contextlib.aclosing(engine.generate(request)) as outputs:
        found = [entry async for output in outputs for entry in output.prompt_logprobs or ()]
    logprobs = [entry.logprob for entry in found[window.scored - window.begin :]]
    return [logprob for logprob in logprobs if logprob is not None]


def _report(of: str, scores: Scores) -> None:
    loss, count = scores.loss, len(scores.logprobs)
    bits = loss * count / math.log(2) / scores.num_bytes
    print(
        f"{of}perplexity {math.exp(loss):.6g} (loss {loss:.6f} nats a token, {bits:.4f} bits a byte; {count:,} tokens "
        f"in {scores.num_windows:,} window{'' if scores.num_windows == 1 else 's'})",
        flush=True,
    )


def _compare(scores: Scores, other: Scores) -> None:
    if len(scores.logprobs) != len(other.logprobs):
        raise ConfigError("--against: the tokens differ: give flags with which the tokenizer stays the same")
    differences = [abs(one - two) for one, two in zip(scores.logprobs, other.logprobs, strict=True)]
    print(
        f"log-probabilities differ by {math.fsum(differences) / len(differences):.6f} on average, by "
        f"{max(differences):.6f} at most"
    )
