"""`palladio replay DUMP`: runs the requests of a crash dump again, and compares token by token."""

import argparse
import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from palladio.cli.parsing import make_parser
from palladio.flags.gpu_memory import gpu_memory
from palladio.flags.options import read_options
from palladio.flags.server_args import own_flags, parse_server_args
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.front.requests.crash_dump import FORMAT, CrashDump, RecordedSample
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, PalladioError
from palladio.runtime.interface.outputs.token_output import FinishReason
from palladio.runtime.process.process_transport import ProcessTransport
from palladio.runtime.telemetry.logs import configure_logging, escape_control
from palladio.server.launch import report_error

TOKENS_BEYOND = 8  # of a request that had not ended: what made the engine fail came after the last recorded token

_NOT_REPLAYED: Final = {  # flags that would refuse, end or repeat what is to be seen
    *("crash_dump_folder", "max_engine_restarts", "max_queued_requests", "request_timeout")
}
_LOG_FLAGS: Final = {"log_level", "log_format"}
_HINT: Final = (
    "Without --deterministic, tokens may differ at near-ties, because batches of other sizes round differently. "
    "See docs/operations.md."
)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one sample.

    Attributes:
        difference: from the recording, in words; "" if there is none.
        num_compared: tokens that were recorded.
    """

    difference: str
    num_compared: int


def replay(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the command; returns the exit status.

    Args:
        argv: the dump, then flags.
        environment: see `launch` in server/launch.py.
    """
    if not argv or argv[0] in ("--help", "-h", "help"):
        parser().print_help()
        return 0 if argv else 2
    try:
        dump = _without_media(read_dump(Path(argv[0])))
        config = _configure(dump, argv[1:])
        transport = ProcessTransport(environment=gpu_memory(environment))  # a crash must not take this process along
        outcomes = asyncio.run(_replay_all(AsyncEngine(config, transport), dump.requests))
    except PalladioError as error:
        return report_error(error)
    except KeyboardInterrupt:
        return 130
    return _report(dump, outcomes, config)


def parser() -> argparse.ArgumentParser:
    found = make_parser(
        "replay",
        "Runs the requests of a crash dump (--crash-dump-folder) again, all at once, with the flags and seeds in the "
        "dump, and compares their tokens with the recorded ones. Flags on the command line override those in the dump.",
        [
            "palladio replay /var/dumps/crash.json",
            "palladio replay crash.json --model-path /elsewhere/model     # the model has moved",
        ],
        {0: "all tokens are equal", 1: "some differ, or the engine failed again", 2: "the dump or a flag is invalid"},
        usage="palladio replay DUMP [flags of `palladio serve`]",
    )
    found.add_argument("dump", metavar="DUMP", help="a file of --crash-dump-folder; comes first")
    return found


def read_dump(path: Path) -> CrashDump:
    """
    Raises:
        ConfigError: it can't be read, or is no crash dump that this version understands.
    """
    try:
        data = path.read_bytes()
        content = json.loads(data)
    except OSError as error:
        raise ConfigError(f"cannot read the crash dump {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not a crash dump: not valid JSON ({error})") from error
    if not isinstance(content, dict) or "format" not in content or "requests" not in content:
        raise ConfigError(f"{path} is not a crash dump: `format` or `requests` is missing")
    if content["format"] != FORMAT:
        raise ConfigError(
            f"{path} has format {content['format']!r}, but this version reads format {FORMAT}: replay it with "
            f"the version that wrote it ({_version(content)})"
        )
    try:
        return msgspec.json.decode(data, type=CrashDump)
    except (msgspec.ValidationError, PalladioError) as error:
        raise ConfigError(f"{path} is corrupt or from another version ({_version(content)}): {error}") from error


def _without_media(dump: CrashDump) -> CrashDump:
    """The requests whose prompts are of token ids alone."""
    kept = [sample for sample in dump.requests if not sample.request.media]
    if len(kept) < len(dump.requests):
        count = len(dump.requests) - len(kept)
        print(f"not replayed: {count} requests whose prompts have parts that are no token ids, which a dump lacks")
    return dataclasses.replace(dump, requests=kept)


def _version(content: Mapping[str, Any]) -> str:
    versions = content.get("versions")
    return f"palladio {versions.get('palladio', '?')}" if isinstance(versions, dict) else "unknown"


def _configure(dump: CrashDump, argv: Sequence[str]) -> EngineConfig:
    """
    Raises:
        ConfigError: a flag is wrong, or has no effect here.
    """
    words = [word for name, value in dump.flags.items() if name not in _NOT_REPLAYED for word in _words(name, value)]
    of_dump = [dataclasses.replace(option, rank=0) for option in read_options([*words, "--max-engine-restarts=0"])]
    args = parse_server_args(argv, of_dump).args
    config, defaults = args.engine_config(), own_flags()
    idle = [name for name, value in args.flags().items() if value != defaults[name] and name not in config.flags()]
    if set(idle) - _LOG_FLAGS:
        names = ", ".join("--" + name.replace("_", "-") for name in sorted(set(idle) - _LOG_FLAGS))
        raise ConfigError(f"{names}: `palladio replay` does not serve HTTP; omit it")
    configure_logging(args.http.log_level, args.observability.log_format)
    return config


def _words(name: str, value: object) -> list[str]:
    """A flag as it is typed."""
    option = name.replace("_", "-")
    match value:
        case None:
            return []
        case bool():
            return [f"--{option}" if value else f"--no-{option}"]
        case list():
            return [f"--{option}", *map(str, value)]
        case _:
            return [f"--{option}={value}"]


async def _replay_all(engine: AsyncEngine, samples: Sequence[RecordedSample]) -> list[Outcome]:
    """
    Raises:
        ConfigError: a flag, or the checkpoint.
        EngineDeadError: the engine could not start.
    """
    await engine.start()
    try:
        await engine.wait_ready()
        print(f"replaying {len(samples)} requests", flush=True)
        return list(await asyncio.gather(*(_replay(engine, i, sample) for i, sample in enumerate(samples))))
    finally:
        await engine.shutdown()


async def _replay(engine: AsyncEngine, index: int, sample: RecordedSample) -> Outcome:
    wanted = sample.token_ids
    limit = None if _has_ended(sample) else len(wanted) + TOKENS_BEYOND
    options = dataclasses.replace(sample.request.options, timeout=None)
    request = dataclasses.replace(sample.request, request_id=str(index), options=options)
    got: list[int] = []
    finish: FinishReason | None = None
    failure = ""
    try:
        async with contextlib.aclosing(engine.generate(request)) as outputs:
            async for output in outputs:
                got += output.token_ids
                finish = output.finish
                if limit is not None and len(got) >= limit:
                    break
    except PalladioError as error:
        failure = f"ended with an error after {len(got)} tokens: {error}"
    else:
        if finish is not None and finish.status:
            failure = f"ended with an error after {len(got)} tokens: {finish.message}"
    return Outcome(failure or _difference(sample, got, finish), len(wanted))


def _has_ended(sample: RecordedSample) -> bool:
    """By itself: its last token is the last one."""
    return sample.finish is not None and sample.finish.type != "abort"


def _difference(sample: RecordedSample, got: Sequence[int], finish: FinishReason | None) -> str:
    wanted = sample.token_ids
    for position, (expected, token) in enumerate(zip(wanted, got, strict=False)):
        if expected != token:
            return f"token {position}: expected {expected}, got {token}"
    if len(got) < len(wanted):
        return f"token {len(got)}: expected {wanted[len(got)]}, got end of output ({_describe(finish)})"
    if not _has_ended(sample):
        return ""
    if len(got) > len(wanted):
        return f"token {len(wanted)}: expected end of output ({_describe(sample.finish)}), got {got[len(wanted)]}"
    if _describe(finish) != _describe(sample.finish):
        return f"end of output: expected {_describe(sample.finish)}, got {_describe(finish)}"
    return ""


def _describe(finish: FinishReason | None) -> str:
    if finish is None:
        return "none"
    return finish.type if finish.matched is None else f"{finish.type} {finish.matched!r}"


def _report(dump: CrashDump, outcomes: Sequence[Outcome], config: EngineConfig) -> int:
    for index, (sample, outcome) in enumerate(zip(dump.requests, outcomes, strict=True)):
        if outcome.difference:
            print(escape_control(f"request {index} ({sample.request.request_id}): {outcome.difference}"))
    num_different = sum(bool(outcome.difference) for outcome in outcomes)
    unfinished = sum(not _has_ended(sample) for sample in dump.requests)
    print(
        f"{len(outcomes)} requests, {sum(outcome.num_compared for outcome in outcomes)} tokens compared: "
        f"{len(outcomes) - num_different} equal, {num_different} different; {unfinished} were unfinished and compared "
        "up to the tokens recorded"
    )
    if num_different and not config.execution.deterministic:
        print(_HINT)
    return 1 if num_different else 0
