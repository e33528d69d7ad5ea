"""GrammarCompiler: grammars compiled in threads and kept, so that no step waits for one."""

import collections
import concurrent.futures
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from palladio.runtime.config import EngineConfig
from palladio.runtime.errors import InvalidRequestError
from palladio.runtime.grammar_backend import CompiledGrammar, GrammarBackend, JsonFormat
from palladio.runtime.grammar_spec import Grammar
from palladio.runtime.tokenizer import Tokenizer

MAX_KEPT = 512  # grammars
MAX_KEPT_BYTES = 1 << 22  # of their texts; compiled they are some 50 times as large
_NUM_THREADS = 4  # a slow grammar holds up the others only if there are so many


class Compilation:
    """A grammar that is compiled, or will be.

    Attributes:
        result: its exception is an InvalidRequestError if the grammar is to blame.
        started: when a thread took it up, by time.monotonic; None: it waits for one.
        num_waiting: requests that wait for it; their desk counts them.
    """

    def __init__(self) -> None:
        self.result: concurrent.futures.Future[CompiledGrammar] = concurrent.futures.Future()
        self.started: float | None = None
        self.num_waiting = 0


class GrammarCompiler:
    """Not thread-safe: the engine's thread calls it.

    Args:
        load: makes the backend; called in a thread, at once.
    """

    def __init__(self, load: Callable[[], GrammarBackend]) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grammar")
        self._backend = self._pool.submit(load)
        self._kept: collections.OrderedDict[Grammar, Compilation] = collections.OrderedDict()
        self._kept_bytes = 0

    @property
    def loaded_backend(self) -> GrammarBackend | None:
        """None: it is still being loaded, or cannot be."""
        ready = self._backend.done() and self._backend.exception() is None
        return self._backend.result() if ready else None

    def compile(self, grammar: Grammar) -> Compilation:
        """Begins to compile the grammar, unless it is known."""
        known = self._kept.get(grammar)
        if known is not None:
            self._kept.move_to_end(grammar)
            return known
        compilation = self._kept[grammar] = Compilation()
        self._kept_bytes += len(grammar.text)
        compilation.result = self._pool.submit(self._run, grammar, compilation)
        while len(self._kept) > 1 and (len(self._kept) > MAX_KEPT or self._kept_bytes > MAX_KEPT_BYTES):
            self._forget(next(iter(self._kept)))
        return compilation

    def give_up(self, grammar: Grammar, compilation: Compilation) -> None:
        """Nobody waits for it any more: it is not begun, if it is not begun yet."""
        if compilation.result.cancel() and self._kept.get(grammar) is compilation:
            self._forget(grammar)

    def close(self) -> None:
        """Compiles nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _forget(self, grammar: Grammar) -> None:
        del self._kept[grammar]
        self._kept_bytes -= len(grammar.text)

    def _run(self, grammar: Grammar, compilation: Compilation) -> CompiledGrammar:
        compilation.started = time.monotonic()
        return self._backend.result().compile(grammar)


def json_format_of(config: EngineConfig) -> JsonFormat:
    """
    Raises:
        ConfigError: the pattern of whitespace is no regular expression.
    """
    options = config.grammar
    json_format = JsonFormat(
        options.constrained_json_whitespace_pattern, is_compact=options.constrained_json_disable_any_whitespace
    )
    if json_format.whitespace_pattern is not None and options.grammar_backend != "none":
        from palladio.runtime.llguidance_backend import check_whitespace  # noqa: PLC0415 (see load_backend)

        check_whitespace(json_format)
    return json_format


def load_backend(
    config: EngineConfig, path: Path, vocab_size: int, eos_ids: list[int], json_format: JsonFormat
) -> GrammarBackend:
    """The backend for a model.

    Args:
        path: of the model.
        vocab_size: V, columns of the logits.
        eos_ids: of the model's config; the tokenizer may know another one.

    Raises:
        InvalidRequestError: grammars are off, or this tokenizer can't have them.
        ImportError: llguidance is not installed.
    """
    from palladio.runtime.llguidance_backend import LlguidanceBackend  # noqa: PLC0415 (an engine runs without it)

    source = config.source
    if source.is_embedding:
        raise InvalidRequestError("an engine that makes embeddings writes no text (--is-embedding)", param="grammar")
    if config.grammar.grammar_backend == "none":
        raise InvalidRequestError("grammars are off (--grammar-backend none)", param="grammar")
    if source.skip_tokenizer_init:
        raise InvalidRequestError("grammars need a tokenizer (--skip-tokenizer-init)", param="grammar")
    folder = Path(source.tokenizer_path or path)
    file, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if file.is_file():
        tokenizer = json.loads(file.read_text(encoding="utf-8"))
    else:
        tokenizer = json.loads(Tokenizer.load(folder, trust_remote_code=source.trust_remote_code).to_json())
    own_eos = _eos_id(tokenizer, json.loads(settings.read_text()) if settings.is_file() else {})
    text = json.dumps(tokenizer | {"truncation": None, "padding": None})
    ids = dict.fromkeys([*eos_ids, *([] if own_eos is None else [own_eos])])
    return LlguidanceBackend(text, vocab_size, list(ids), json_format)


def _eos_id(tokenizer: dict[str, Any], settings: dict[str, Any]) -> int | None:
    """The id of the tokenizer's own end-of-sequence token."""
    token = settings.get("eos_token")
    name = token.get("content") if isinstance(token, dict) else token
    added = {entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens") or ()}
    found: int | None = added.get(name)
    return found
