"""GrammarCompiler: checks and compiles grammars in threads and keeps them, so that no step waits for one."""

import collections
import concurrent.futures
import functools
import hashlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from palladio.model.files.small_files import MAX_TABLE_BYTES, read_object
from palladio.runtime.grammar.backend import BackendSettings, CompiledGrammar, GrammarBackend, JsonFormat
from palladio.runtime.grammar.cache import Compilation, GrammarCache
from palladio.runtime.grammar.check_protocol import CheckLimits
from palladio.runtime.grammar.checker import Checker, TooExpensiveError
from palladio.runtime.grammar.cost import costly_places, estimated_bytes, is_surely_cheap
from palladio.runtime.grammar.fair_threads import FairThreads
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.grammar_config import GrammarConfig
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.telemetry.process_memory import give_back
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

MAX_CPU_SECONDS = 2.0  # of compiling one grammar
MAX_COMPILED_BYTES = 1 << 26  # of one grammar; a quarter of what all may have, where that is less
_QUICK_SECONDS = 0.15  # of CPU: what takes longer is checked again in the slow pool
_MAX_RESULTS = 4096
_NUM_THREADS = 2  # of each pool

_Result = int | InvalidRequestError  # the bytes that it holds, or why it is refused


class GrammarCompiler:
    """Not thread-safe: the engine's thread calls it.

    There are three pools of threads: for grammars that are surely cheap; for all others, which are checked first; and
    for grammars that the quick check did not finish. Each pool serves owners in rotation.

    Args:
        load: makes the backend; called in a thread, at once.
        checker: checks grammars that may be expensive; closed with this. None: all are compiled unchecked.
        max_bytes: the most bytes of all compiled grammars.
        max_cpu_seconds: the most CPU time to compile one.
    """

    def __init__(
        self,
        load: Callable[[], GrammarBackend],
        checker: Checker | None = None,
        *,
        max_bytes: int = GrammarConfig.grammar_cache_bytes,
        max_cpu_seconds: float = MAX_CPU_SECONDS,
    ) -> None:
        self._cheap, self._quick, self._slow = (
            FairThreads(_NUM_THREADS, f"grammar_{name}") for name in ("cheap", "quick", "slow")
        )
        self._backend: concurrent.futures.Future[GrammarBackend] = self._cheap.submit("", load)
        self._checker = checker
        self._results = _Results()
        self._cache = GrammarCache(max_bytes)
        self._max_bytes = min(MAX_COMPILED_BYTES, max_bytes // 4)
        self._max_cpu_seconds = max_cpu_seconds

    @property
    def loaded_backend(self) -> GrammarBackend | None:
        """None: it is still being loaded, or cannot be."""
        ready = self._backend.done() and self._backend.exception() is None
        return self._backend.result() if ready else None

    @property
    def num_bytes(self) -> int:
        """Bytes of all compiled grammars that are kept or still in use."""
        return self._cache.num_bytes

    @property
    def num_kept(self) -> int:
        return len(self._cache)

    def compile(self, grammar: Grammar, owner: str = "") -> Compilation:
        """Begin to compile the grammar for an owner, unless it is known."""
        known = self._cache.get(grammar)
        if known is not None:
            return known
        compilation = Compilation()
        self._cache.add(grammar, compilation)
        pool, work = self._cheap, self._compile
        if self._checker is not None and not is_surely_cheap(grammar):
            pool, work = self._quick, functools.partial(self._check_quickly, owner=owner)
        compilation.is_small = pool is self._cheap
        _submit(pool, owner, functools.partial(work, grammar, compilation), compilation)
        return compilation

    def give_up(self, grammar: Grammar, compilation: Compilation) -> None:
        """Stop a compilation that no request waits for, if it has not begun or waits for the slow check."""
        if compilation.result.cancel():
            self._cache.forget(grammar, compilation)
        elif not compilation.result.done() and compilation.started is None:  # between two pools
            compilation.is_given_up = True
            self._cache.forget(grammar, compilation)
        elif compilation.result.done() and not isinstance(
            compilation.result.exception(), InvalidRequestError | None
        ):  # no fault of the grammar's: the next one tries again
            self._cache.forget(grammar, compilation)

    def has_room(self, compilation: Compilation) -> bool:
        """Whether an output may begin to follow this grammar within the cache's bound."""
        return self._cache.has_room(compilation)

    def flush(self) -> None:
        """Drop all compiled grammars that no output follows, and all results of checks."""
        self._cache.clear()
        self._results.clear()
        give_back()

    def close(self) -> None:
        """Stop the threads and the checker: no further grammar is compiled."""
        for pool in (self._cheap, self._quick, self._slow):
            pool.close()
        if self._checker is not None:
            self._checker.close()

    def _check_quickly(self, grammar: Grammar, compilation: Compilation, *, owner: str) -> CompiledGrammar | None:
        """Compile the grammar, or hand it to the slow pool."""
        if not compilation.result.set_running_or_notify_cancel():
            return None
        compilation.started = time.monotonic()
        limit = min(_QUICK_SECONDS, self._max_cpu_seconds)
        try:
            num_bytes = self._check(grammar, limit)
        except TooExpensiveError:
            compilation.started = None
            _submit(self._slow, owner, functools.partial(self._check_slowly, grammar, compilation), compilation)
            return None
        return self._finish(grammar, compilation, num_bytes)

    def _check_slowly(self, grammar: Grammar, compilation: Compilation) -> CompiledGrammar | None:
        if compilation.is_given_up:
            raise InvalidRequestError("no request waits for the grammar", param="grammar")
        compilation.started = time.monotonic()
        try:
            num_bytes = self._check(grammar, self._max_cpu_seconds)
        except TooExpensiveError:
            error = InvalidRequestError.of(
                "the {param} ({kind}) takes more than {seconds:g} s, or {size} MiB of memory, to compile: {places}",
                param="grammar",
                kind=grammar.kind,
                seconds=self._max_cpu_seconds,
                size=self._max_bytes >> 20,
                places=costly_places(grammar),
            )
            self._results.put(grammar, error)
            raise error from None
        return self._finish(grammar, compilation, num_bytes)

    def _check(self, grammar: Grammar, cpu_seconds: float) -> int:
        """Check the grammar, unless the result is known; returns the bytes that it holds when compiled.

        Raises:
            InvalidRequestError: the grammar is refused, or there are no grammars with this model.
            TooExpensiveError: it takes more than `cpu_seconds`, or too much memory.
            OverloadedError: no answer came in time.
        """
        assert self._checker is not None
        self._backend.result()  # if that cannot be made, the checker cannot make it either
        result = self._results.get(grammar)
        if result is None:
            try:
                result = self._checker.check(grammar, CheckLimits(cpu_seconds, self._max_bytes))
            except InvalidRequestError as error:
                result = error
            self._results.put(grammar, result)
        if isinstance(result, InvalidRequestError):
            raise result
        return result

    def _compile(self, grammar: Grammar, compilation: Compilation) -> CompiledGrammar | None:
        if not compilation.result.set_running_or_notify_cancel():
            return None
        compilation.started = time.monotonic()
        return self._finish(grammar, compilation, estimated_bytes(grammar))

    def _finish(self, grammar: Grammar, compilation: Compilation, num_bytes: int) -> CompiledGrammar:
        compiled = self._backend.result().compile(grammar)
        compilation.num_bytes = num_bytes
        self._cache.note(compiled, num_bytes)
        return compiled


class _Results:
    """Results of the checker, by the grammar's digest. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: collections.OrderedDict[bytes, _Result] = collections.OrderedDict()

    def get(self, grammar: Grammar) -> _Result | None:
        with self._lock:
            return self._known.get(_digest(grammar))

    def put(self, grammar: Grammar, result: _Result) -> None:
        with self._lock:
            self._known[_digest(grammar)] = result
            while len(self._known) > _MAX_RESULTS:
                self._known.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._known.clear()


def _digest(grammar: Grammar) -> bytes:
    return hashlib.sha256(json.dumps((grammar.kind, grammar.text, grammar.parts)).encode()).digest()


def _submit(
    pool: FairThreads, owner: str, work: Callable[[], CompiledGrammar | None], compilation: Compilation
) -> None:
    """Run the work in a pool; unless it returns None, its outcome is the compilation's."""

    def hand_over(future: concurrent.futures.Future[CompiledGrammar | None]) -> None:
        if future.cancelled():
            compilation.result.cancel()
        elif (error := future.exception()) is not None:
            compilation.result.set_exception(error)
        elif (compiled := future.result()) is not None:
            compilation.result.set_result(compiled)

    pool.submit(owner, work).add_done_callback(hand_over)


def json_format_of(config: EngineConfig) -> JsonFormat:
    """
    Raises:
        ConfigError: the pattern of whitespace is no regular expression.
    """
    options = config.grammar
    json_format = JsonFormat(
        options.constrained_json_whitespace_pattern,
        is_compact=options.constrained_json_disable_any_whitespace,
        closes_objects=options.json_additional_properties == "closed",
    )
    if json_format.whitespace_pattern is not None and options.grammar_backend != "none":
        from palladio.runtime.grammar.llguidance_backend import check_whitespace  # noqa: PLC0415 (see load_backend)

        check_whitespace(json_format)
    return json_format


def load_backend(
    config: EngineConfig, path: Path, vocab_size: int, eos_ids: list[int], json_format: JsonFormat
) -> GrammarBackend:
    """The backend for a model: see load_settings.

    Raises:
        ImportError: llguidance is not installed.
    """
    from palladio.runtime.grammar.llguidance_backend import LlguidanceBackend  # noqa: PLC0415 (an engine runs without it)

    return LlguidanceBackend(load_settings(config, path, vocab_size, eos_ids, json_format))


def load_settings(
    config: EngineConfig, path: Path, vocab_size: int, eos_ids: list[int], json_format: JsonFormat
) -> BackendSettings:
    """What the backend for a model is made of.

    Args:
        path: of the model.
        vocab_size: V, columns of the logits.
        eos_ids: of the model's config; the tokenizer may know another one.

    Raises:
        InvalidRequestError: grammars are off, or this tokenizer can't have them.
    """
    source = config.source
    if source.is_embedding:
        raise InvalidRequestError(
            "this engine makes embeddings (--is-embedding) and generates no text", param="grammar"
        )
    if config.grammar.grammar_backend == "none":
        raise InvalidRequestError("grammars are off (--grammar-backend none)", param="grammar")
    if source.skip_tokenizer_init:
        raise InvalidRequestError(
            "grammars need a tokenizer, and the server runs with --skip-tokenizer-init", param="grammar"
        )
    folder = Path(source.tokenizer_path or path)
    tokenizer = None if folder.is_file() else read_object(folder, "tokenizer.json", MAX_TABLE_BYTES)
    if tokenizer is None:
        tokenizer = json.loads(Tokenizer.load(folder, trust_remote_code=source.trust_remote_code).to_json())
    own_eos = _eos_id(tokenizer, {} if folder.is_file() else read_object(folder, "tokenizer_config.json") or {})
    text = json.dumps(tokenizer | {"truncation": None, "padding": None})
    ids = dict.fromkeys([*eos_ids, *([] if own_eos is None else [own_eos])])
    return BackendSettings(text, vocab_size, tuple(ids), json_format)


def _eos_id(tokenizer: dict[str, Any], settings: dict[str, Any]) -> int | None:
    """The id of the tokenizer's own end-of-sequence token."""
    token = settings.get("eos_token")
    name = token.get("content") if isinstance(token, dict) else token
    added = {entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens") or ()}
    return added.get(name) if isinstance(name, str) else None
