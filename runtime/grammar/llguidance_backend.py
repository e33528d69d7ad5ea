"""LlguidanceBackend: grammars compiled by llguidance for one tokenizer, and the token masks that follow from them.

https://github.com/guidance-ai/llguidance: an Earley parser over derivative-based lexers, walked along a trie of all
tokens. Its limits bound what a step costs that walks a hostile grammar. What they do not bound is refused here where
it can be seen, and otherwise by the process that checks grammars (check_process): no call of this library can be
interrupted.
"""

import functools
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par

from palladio.runtime.grammar.backend import BackendSettings, JsonFormat
from palladio.runtime.grammar.constraint import Matcher
from palladio.runtime.grammar.limits import check_schema_limits, forced_length
from palladio.runtime.grammar.structural_tags import structural_tag_lark
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.text.schemas.json_schemas import locate_error
from palladio.runtime.text.schemas.pattern_classes import with_written_classes
from palladio.runtime.text.schemas.schema_rewriting import UnsupportedSchemaError, rewritten

_LOST = ("InternalError", "NoExtensionBias")  # reasons to stop before the text is complete
_LISTING = re.compile(r"\d+ \||\^*$|<non-verbose/>$")
MAX_GRAMMAR_BYTES = 1 << 18
MAX_FORCED_CHARACTERS = 1 << 15
_EMBEDDED = re.compile(r"%json\s*(?=[{])")
# Bounds of one step of one output: some 10 ms each. A row has 4 items for each optional property that may come next.
_MAX_ITEMS_IN_ROW = 5000
_MAX_LEXER_STATES = 50_000  # of one output, of 1 to 2 KB each
# What those bounds let through is timed: all requests of a step wait for the slowest one.
SLOW_SECONDS = 0.1  # of CPU, for one token
_MAX_SLOW_SECONDS = 2.0  # of one output's slow tokens together
WATCHED_STEPS = 8  # in which outputs are timed one by one after a slow step


class LlguidanceGrammar:
    """A grammar that llguidance has compiled.

    Args:
        matcher: at the beginning; it is copied, never moved on.
    """

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def new_matcher(self) -> "LlguidanceMatcher":
        return LlguidanceMatcher(self._matcher.deep_copy(), self)


class LlguidanceMatcher:
    """Follows one output through a grammar of llguidance.

    Args:
        source: what it was copied from, and shares most of its memory with.

    Attributes:
        native: llguidance's.
        watched: steps for which it is filled by itself and timed, because a step was slow.
    """

    def __init__(self, native: llguidance.LLMatcher, source: LlguidanceGrammar) -> None:
        self.native = native
        self.watched = 0
        self._source = source
        self._slow_seconds = 0.0

    def watch(self) -> None:
        """A step was slow, maybe for this."""
        self.watched = WATCHED_STEPS

    def charge(self, seconds: float) -> None:
        """Notes the CPU time that it took by itself, in one of the steps for which it is watched."""
        self.watched -= 1
        if seconds > SLOW_SECONDS:
            self.watch()
            self._slow_seconds += seconds

    @property
    def error(self) -> str | None:
        if self._slow_seconds > _MAX_SLOW_SECONDS:
            return f"it takes too long to say what may come next: {self._slow_seconds:.1f} s so far"
        message = _readable(self.native.get_error()) if self.native.is_error() else ""
        if "too many" in message.lower():
            return f"it is too complex: {message}"
        if self.native.is_stopped() and self.native.stop_reason() in _LOST:
            return "no text of its language begins like this"
        return message or None

    @property
    def is_stopped(self) -> bool:
        return self.native.is_stopped()

    def accept(self, token_id: int) -> None:
        start = time.thread_time()
        self.native.consume_token(token_id)
        self.charge(time.thread_time() - start)

    def allows(self, token_id: int) -> bool:
        return self.native.validate_tokens([token_id]) == 1

    def forced(self) -> list[int]:
        start = time.thread_time()
        tokens = self.native.compute_ff_tokens()
        self.charge(time.thread_time() - start)
        return tokens


class LlguidanceBackend:
    """Compiles grammars with llguidance for one tokenizer, and fills masks.

    Raises:
        InvalidRequestError: llguidance can't use the tokenizer.
    """

    def __init__(self, settings: BackendSettings) -> None:
        vocab_size, eos_ids = settings.vocab_size, list(settings.eos_ids)
        try:
            self._tokenizer = llguidance.LLTokenizer(settings.tokenizer_json, n_vocab=vocab_size, eos_token=eos_ids)
        except ValueError as error:
            raise InvalidRequestError(
                f"grammars are not available with this model's tokenizer: {_first_line(str(error))}", param="grammar"
            ) from error
        self.mask_width = -(-vocab_size // 32)
        self._json_format = settings.json_format
        self._limits = llguidance.LLParserLimits(
            verbose_errors=False, max_items_in_row=_MAX_ITEMS_IN_ROW, max_lexer_states=_MAX_LEXER_STATES
        )

    def compile(self, grammar: Grammar) -> LlguidanceGrammar:
        """Compile the grammar for this tokenizer.

        Raises:
            InvalidRequestError: it is malformed, or holds what is not supported; the message says where.
        """
        _check_size(grammar)
        _check_schemas(grammar)
        native = self._translate(grammar)
        error = self._refusal(native)
        if error is not None:
            raise self._explain(grammar, error)
        matcher = llguidance.LLMatcher(self._tokenizer, native, log_level=0, limits=self._limits)
        compiled = LlguidanceGrammar(matcher)
        first = compiled.new_matcher()
        first.native.compute_bitmask()  # only now is it found out
        if first.error is not None:
            message = "the {param} ({kind}) cannot be used: {error}"
            raise InvalidRequestError.of(message, param="grammar", kind=grammar.kind, error=first.error)
        return compiled

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, without special ones: what a matcher can be asked about."""
        return self._tokenizer.tokenize_str(text)

    def fill(self, matchers: Sequence[tuple[Matcher, int]], masks: npt.NDArray[np.int32]) -> None:
        """Write the masks of the next tokens: i32[B, ⌈V / 32⌉], a row each; slow matchers one by one, with a clock."""
        ours = [(matcher, row) for matcher, row in matchers if isinstance(matcher, LlguidanceMatcher)]
        assert len(ours) == len(matchers), "a matcher of another library"
        together = [(matcher, row) for matcher, row in ours if not matcher.watched]
        for matcher, row in ours:
            if matcher.watched:
                start = time.thread_time()
                fill_next_token_bitmask(matcher.native, masks, row)
                matcher.charge(time.thread_time() - start)
        if not together:
            return
        begun = time.monotonic()
        fill_next_token_bitmask_par(self._executor, [(matcher.native, row) for matcher, row in together], masks)
        if time.monotonic() - begun > SLOW_SECONDS:
            for matcher, _ in together:
                matcher.watch()

    @functools.cached_property
    def _executor(self) -> llguidance.LLExecutor:
        """Threads of the library, made late: the process that checks grammars forks, so it must not have any."""
        return llguidance.LLExecutor()

    def _translate(self, grammar: Grammar) -> str:
        """The grammar in llguidance's own notation."""
        try:
            match grammar.kind:
                case "json_schema":
                    return self._json_schema(json.loads(grammar.text))
                case "choice":
                    return _choice(json.loads(grammar.text))
                case "structural_tag":
                    return structural_tag_lark(json.loads(grammar.text), self._is_special, self._rewrite)
                case "regex":
                    return llguidance.grammar_from("regex", with_written_classes(grammar.text))
                case "ebnf" | "lark":
                    return llguidance.grammar_from(grammar.kind, grammar.text)
        except UnsupportedSchemaError as error:
            message = "the {param} ({kind}) is not supported at {error}"
            raise InvalidRequestError.of(message, param="grammar", kind=grammar.kind, error=error) from None
        except (ValueError, RecursionError) as error:
            raise _malformed(grammar, error) from None

    def _json_schema(self, schema: object) -> str:
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        if not isinstance(schema, Mapping):
            raise ValueError("a JSON schema must be an object")
        schema = self._rewrite(schema)
        return llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=self._json_format.options())  # type: ignore[arg-type]

    def _rewrite(self, schema: Any) -> Any:
        return rewritten(schema, closes_objects=self._json_format.closes_objects)

    def _schema_refusal(self, schema: object) -> str | None:
        """Why a schema is refused that is a part of another one; None: it is not."""
        try:
            return self._refusal(self._json_schema(schema))
        except ValueError as error:
            return str(error)

    def _refusal(self, native: str) -> str | None:
        is_error, messages = llguidance.LLMatcher.validate_grammar_with_warnings(
            native, self._tokenizer, limits=self._limits
        )
        return _readable(messages[0]) if is_error else None

    def _explain(self, grammar: Grammar, error: str) -> InvalidRequestError:
        """The refusal, with the place that is to blame: one of the grammar's parts, or one of a schema's."""
        for name, text in grammar.parts:
            schema = json.loads(text)
            reason = self._schema_refusal(schema)
            if reason is not None:
                where = self._locate(schema, reason)
                return InvalidRequestError.of("{param}{where}: {reason}", param=name, where=where, reason=reason)
        where = self._locate(json.loads(grammar.text), error) if grammar.kind == "json_schema" else ""
        message = "the {param} ({kind}) is malformed, or not supported{where}: {error}"
        return InvalidRequestError.of(message, param="grammar", kind=grammar.kind, where=where, error=error)

    def _locate(self, schema: object, error: str) -> str:
        return f" at {locate_error(schema, error, self._schema_refusal)}"

    def _is_special(self, text: str) -> bool:
        """Whether this text is one special token."""
        ids = self._tokenizer.tokenize_str(text, parse_special=True)
        return len(ids) == 1 and self._tokenizer.is_special_token(ids[0])


def _check_size(grammar: Grammar) -> None:
    """
    Raises:
        InvalidRequestError: it is too long, or the text that its counts ask for is.
    """
    size = len(grammar.text.encode("utf-8", "surrogatepass"))
    if size > MAX_GRAMMAR_BYTES:
        message = "the {param} is over the limit of {limit} bytes"
        raise InvalidRequestError.of(message, param="grammar", limit=MAX_GRAMMAR_BYTES)
    length = 0 if grammar.kind == "choice" else forced_length(grammar.text)
    if length > size + MAX_FORCED_CHARACTERS:
        raise InvalidRequestError.of(
            "the counts of the {param} ({kind}) require at least about {length} characters, over the limit of {limit}: "
            "lower them",
            param="grammar",
            kind=grammar.kind,
            length=length,
            limit=MAX_FORCED_CHARACTERS,
        )


def _check_schemas(grammar: Grammar) -> None:
    """
    Raises:
        InvalidRequestError: a schema in it asks for too much.
    """
    try:
        for name, text in grammar.parts:
            check_schema_limits(json.loads(text), "{param}", name)
        if grammar.kind == "json_schema":
            check_schema_limits(json.loads(grammar.text), "the {param} (json_schema)", "grammar")
        elif grammar.kind == "structural_tag":
            tag = json.loads(grammar.text)
            structures = tag.get("structures") if isinstance(tag, Mapping) else None
            for number, structure in enumerate(structures if isinstance(structures, list) else ()):
                if isinstance(structure, Mapping):
                    where, inside = "the {param} (structural_tag)", f", structures.{number}.schema"
                    check_schema_limits(structure.get("schema"), where, "grammar", inside=inside)
        elif grammar.kind == "lark":
            for found in _EMBEDDED.finditer(grammar.text):
                schema, _ = json.JSONDecoder().raw_decode(grammar.text, found.end())
                check_schema_limits(schema, "the {param} (lark)", "grammar")
    except InvalidRequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise _malformed(grammar, error) from None


def _malformed(grammar: Grammar, error: Exception) -> InvalidRequestError:
    reason = _first_line(str(error))
    message = "the {param} ({kind}) is malformed: {reason}"
    return InvalidRequestError.of(message, param="grammar", kind=grammar.kind, reason=reason)


def _choice(choices: object) -> str:
    if not isinstance(choices, list) or not choices or not all(isinstance(text, str) and text for text in choices):
        raise ValueError("a choice must be a list of non-empty strings")
    # One terminal: as alternatives of a rule, each would be an item of the parser.
    return llguidance.grammar_from("lark", "start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, choices)))


def _readable(message: str) -> str:
    """The library's message in one line, without the listing of the grammar, which is not what the client wrote."""
    lines = [line.strip() for line in message.splitlines()]
    return " ".join(line for line in lines if not _LISTING.match(line))


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def check_whitespace(json_format: JsonFormat) -> None:
    """
    Raises:
        ConfigError: the pattern is not a regular expression that llguidance takes.
    """
    grammar = llguidance.LLMatcher.grammar_from_json_schema("{}", defaults=json_format.options())  # type: ignore[arg-type]
    message = llguidance.LLMatcher.validate_grammar(grammar)
    if message:
        raise ConfigError(f"--constrained-json-whitespace-pattern {json_format.whitespace_pattern}: {message.strip()}")
