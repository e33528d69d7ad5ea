"""Grammars as llguidance compiles them: what is accepted, what is refused and where, and the masks."""

import json
import subprocess
import sys
import time
from pathlib import Path

import llguidance
import numpy as np
import pytest
from llguidance.numpy import fill_next_token_bitmask

from palladio.runtime.grammar import llguidance_backend
from palladio.runtime.grammar.backend import BackendSettings, JsonFormat
from palladio.runtime.grammar.compiler import GrammarCompiler, load_backend
from palladio.runtime.grammar.limits import MAX_OPTIONAL, forced_length
from palladio.runtime.grammar.llguidance_backend import MAX_GRAMMAR_BYTES, LlguidanceBackend, check_whitespace
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import Grammar, GrammarKind
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.runtime.tiny_engine import VOCAB_SIZE

EOS = 2
CITY = 'root ::= city | description\ncity ::= "London" | "Paris"\ndescription ::= city " is " status\nstatus ::= "big"'


@pytest.fixture(scope="module")
def tokenizer(tiny_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_dir)


@pytest.fixture(scope="module")
def backend(tiny_dir: Path) -> LlguidanceBackend:
    return make(tiny_dir)


def make(folder: Path, json_format: JsonFormat = JsonFormat()) -> LlguidanceBackend:
    return LlguidanceBackend(make_settings(folder, json_format))


def make_settings(folder: Path, json_format: JsonFormat = JsonFormat()) -> BackendSettings:
    return BackendSettings((folder / "tokenizer.json").read_text(), VOCAB_SIZE, (EOS,), json_format)


def takes(backend: LlguidanceBackend, tokenizer: Tokenizer, grammar: Grammar, text: str) -> bool:
    """Whether the text, and nothing after it, is in the language."""
    matcher = backend.compile(grammar).new_matcher()
    for token_id in tokenizer.encode(text):
        if not matcher.allows(token_id):
            return False
        matcher.accept(token_id)
    return matcher.is_stopped or matcher.allows(EOS)


@pytest.mark.parametrize(
    ("kind", "text", "good", "bad"),
    [
        ("json_schema", '{"type": "object"}', ["{}", '{"a": [1, null]}', "{\n}"], ["[]", "{", '{"a": }']),
        ("json_schema", "true", ["1", "null", '"x"'], ["x", ""]),
        ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 7}', ["5", "7"], ["4", "5.5", "55"]),
        ("regex", "(Paris|London)", ["Paris"], ["Pari", "Paris ", "Rome"]),
        ("regex", 'a/b"c', ['a/b"c'], ["a/b"]),
        ("ebnf", CITY, ["Paris", "London is big"], ["Paris is", "Rome"]),
        ("lark", 'start: "a" /[0-9]+/', ["a1", "a123"], ["a", "b1"]),
        ("choice", '["yes", "no", "a\\"b/c"]', ["yes", 'a"b/c'], ["y", "maybe"]),
    ],
)
def test_languages(
    backend: LlguidanceBackend, tokenizer: Tokenizer, kind: GrammarKind, text: str, good: list[str], bad: list[str]
) -> None:
    grammar = Grammar(kind, text)
    for sentence in good:
        assert takes(backend, tokenizer, grammar, sentence), sentence
    for sentence in bad:
        assert not takes(backend, tokenizer, grammar, sentence), sentence


TAG = {
    "structures": [
        {"begin": "<function=add>", "schema": {"type": "object", "required": ["n"]}, "end": "</function>"},
        {"begin": "<function=stop>", "schema": {"type": "integer"}, "end": "</function>"},
    ],
    "triggers": ["<function="],
}


def test_structural_tags(backend: LlguidanceBackend, tokenizer: Tokenizer) -> None:
    grammar = Grammar("structural_tag", json.dumps(TAG))
    for text in ("", "plain text", "a <function=stop>5</function> b", '<function=add>{"n": 1}</function>'):
        assert takes(backend, tokenizer, grammar, text), text
    for text in ("<function=mul>", "<function=stop>x", "<function=add>{}</function>", "<function=stop>5</func>"):
        assert not takes(backend, tokenizer, grammar, text), text


def test_a_trigger_that_is_a_special_token(backend: LlguidanceBackend, tokenizer: Tokenizer) -> None:
    tag = {"structures": [{"begin": "<|im_start|>f", "schema": {"type": "integer"}}], "triggers": ["<|im_start|>"]}
    grammar = Grammar("structural_tag", json.dumps(tag))
    assert takes(backend, tokenizer, grammar, "text <|im_start|>f5")
    assert not takes(backend, tokenizer, grammar, "text <|im_start|>g5")


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json_schema", "{", "malformed"),
        ("json_schema", "[1]", "must be an object"),
        ("json_schema", '{"type": "strin"}', "at #: Invalid type: strin"),
        ("json_schema", '{"properties": {"a/b": {"items": {"not": {}}}}}', 'at #/properties/a~1b/items: .*"not"'),
        ("json_schema", '{"anyOf": [{"type": "string"}, {"uniqueItems": true}]}', r"at #/anyOf/1: .*uniqueItems"),
        ("json_schema", '{"$defs": {"x": {"contains": {}}}, "$ref": "#/$defs/x"}', r"at #/\$defs/x: .*contains"),
        ("json_schema", '{"$ref": "#/nowhere"}', "at #: Pointer '/nowhere' does not exist"),
        ("json_schema", '{"type": "string", "pattern": "(a"}', "unclosed group"),
        ("json_schema", '{"minimum": 5, "maximum": 3, "type": "integer"}', "greater than maximum"),
        ("json_schema", '{"enum": []}', "Unsatisfiable"),
        ("json_schema", "[" * 5000, "malformed"),
        ("json_schema", '{"$ref": "#"}', "no text of its language"),
        ("regex", "\ud800", "malformed|cannot"),
        ("regex", "(a", "unclosed group"),
        ("regex", "(?=a)b", "look-around"),
        ("ebnf", "root ::= b", "Rule 'b' not found"),
        ("lark", "start: b", "unknown name"),
        ("choice", "[]", "non-empty"),
        ("structural_tag", "{}", "structures"),
        ("structural_tag", '{"structures": [{"begin": "<a>"}], "triggers": ["<b>"]}', "none of the triggers"),
        ("structural_tag", '{"format": {}}', "format is not supported"),
        ("json_schema", " " * MAX_GRAMMAR_BYTES + "{}", "over the limit"),
    ],
)
def test_what_is_refused(backend: LlguidanceBackend, kind: GrammarKind, text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        backend.compile(Grammar(kind, text))
    assert caught.value.param == "grammar"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "(ab){1000000}"),
        ("regex", "x((((a{40}){40}){40}){40})"),
        ("regex", "[ab](bc){300000}"),
        ("lark", 'start: "a"{100000}'),
        ("json_schema", '{"type": "string", "pattern": "^(ab){500000}$"}'),
        ("json_schema", '{"minItems": 900, "items": {"minItems": 900, "items": {"const": "x"}}, "type": "array"}'),
    ],
)
def test_a_short_grammar_for_an_endless_text(backend: LlguidanceBackend, kind: GrammarKind, text: str) -> None:
    """What leaves no choice is found out while every request waits."""
    begun = time.monotonic()
    with pytest.raises(InvalidRequestError, match=r"minimum counts ask for|require at least"):
        backend.compile(Grammar(kind, text))
    assert time.monotonic() - begun < 1.0


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        ("abc", 3),
        ("a{3}", 3),
        ("(ab){3}c", 7),
        (r"\d{4}-[0-9]{2}", 4 + 1 + 4 + 2),
        ("((a){10}){10}", 100),
        ("a{0,9}", 1),
    ],
)
def test_forced_length(pattern: str, length: int) -> None:
    assert forced_length(pattern) == length


def test_many_choices(backend: LlguidanceBackend, tokenizer: Tokenizer) -> None:
    choices = [f"choice {number}" for number in range(10_000)]
    grammar = Grammar("choice", json.dumps(choices))
    assert takes(backend, tokenizer, grammar, "choice 777")
    assert not takes(backend, tokenizer, grammar, "choice 10000")


@pytest.mark.parametrize("count", [pytest.param(600, marks=pytest.mark.slow), MAX_OPTIONAL])
@pytest.mark.parametrize("closed", [True, False])
def test_many_optional_properties(backend: LlguidanceBackend, tokenizer: Tokenizer, count: int, closed: bool) -> None:
    """The first and the last one, and some between; each token's mask is computed as in a step."""
    properties = {f"property {number}": {"type": ["integer", "null"]} for number in range(count)}
    schema = {"type": "object", "properties": properties} | ({"additionalProperties": False} if closed else {})
    matcher = backend.compile(Grammar("json_schema", json.dumps(schema))).new_matcher()
    given = {f"property {number}": number for number in [*range(0, count, count // 3), count - 1]}
    masks = np.zeros((1, backend.mask_width), np.int32)
    for token_id in tokenizer.encode(json.dumps(given)):
        backend.fill([(matcher, 0)], masks)
        assert matcher.error is None
        assert masks.view(np.uint32)[0, token_id // 32] >> token_id % 32 & 1
        matcher.accept(token_id)
        matcher.forced()
    assert matcher.is_stopped or matcher.allows(EOS)


def test_an_output_that_keeps_others_waiting_ends(backend: LlguidanceBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one it is shows when they are filled one by one; the others go on."""
    compiled = backend.compile(Grammar("regex", "[a-z]+"))
    matchers = [compiled.new_matcher() for _ in range(3)]
    pairs = [(matcher, row) for row, matcher in enumerate(matchers)]
    masks, expected = np.zeros((3, backend.mask_width), np.int32), np.zeros((3, backend.mask_width), np.int32)
    backend.fill(pairs, expected)
    assert not any(matcher.watched for matcher in matchers)
    monkeypatch.setattr(llguidance_backend, "SLOW_SECONDS", -1.0)  # all are
    backend.fill(pairs, masks)
    assert all(matcher.watched for matcher in matchers)
    monkeypatch.setattr(llguidance_backend, "SLOW_SECONDS", 10.0)
    slow = matchers[1]
    slow.charge(11.0)
    for _ in range(llguidance_backend.WATCHED_STEPS + 1):
        masks[:] = 0
        backend.fill(pairs, masks)
        np.testing.assert_array_equal(masks, expected)
    assert [matcher.watched for matcher in matchers] == [0, 0, 0]
    assert matchers[0].error is None
    assert "takes too long" in str(slow.error)
    assert matchers[2].error is None


def test_parts_are_named(backend: LlguidanceBackend) -> None:
    parts = (("tools.0", '{"type": "object"}'), ("tools.1", '{"properties": {"x": {"not": {}}}}'))
    text = 'start: "a" %json {"properties": {"x": {"not": {}}}}'
    with pytest.raises(InvalidRequestError, match=r'^tools\.1 at #/properties/x: .*"not"') as caught:
        backend.compile(Grammar("lark", text, parts))
    assert caught.value.param == "tools.1"


HOSTILE = {
    "deep": {
        "allOf": [{"anyOf": [{"properties": {f"k{i}{j}": {"type": "string"}}} for i in range(6)]} for j in range(7)]
    },
    "wide": {"properties": {f"p{i}": {"type": "string"} for i in range(3000)}},
    "counted": {"type": "array", "items": {"type": "array", "maxItems": 100_000}, "maxItems": 100_000},
    "nested counts": {"type": "string", "pattern": "((((a{1,99}){1,99}){1,99}){1,99}){1,99}"},
    "forced": {"type": "array", "items": {"const": "abcdefgh" * 9}, "minItems": 3000},
    "ambiguous": {"type": "string", "pattern": "^(a|a?){1,1000}(b{1,1000}c){1,1000}$"},
    "blown up automaton": {"type": "string", "pattern": "^(a|b)*a(a|b){200}$"},
    "a loop": {"allOf": [{"$ref": "#"}]},
    "long": {"type": "string", "minLength": 1_000_000},
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_hostile_schemas_cost_little(backend: LlguidanceBackend, name: str) -> None:
    """They are refused, or their masks come in time: nothing hangs."""
    begun = time.monotonic()
    try:
        matcher = backend.compile(Grammar("json_schema", json.dumps(HOSTILE[name]))).new_matcher()
    except InvalidRequestError:
        pass
    else:
        for token_id in [4, *[67, 68] * 20]:  # a quotation mark, and letters
            masks = np.full((1, backend.mask_width), -1, np.int32)
            backend.fill([(matcher, 0)], masks)
            if matcher.error is not None or not matcher.allows(token_id):
                break
            matcher.accept(token_id)
    assert time.monotonic() - begun < 20.0  # seconds; most take milliseconds


def test_whitespace(tiny_dir: Path, tokenizer: Tokenizer) -> None:
    schema = Grammar("json_schema", '{"type": "object", "required": ["a"]}')
    spaced, wide = '{ "a" : 1\n}', '{"a":' + " " * 65 + "1}"
    default, compact = make(tiny_dir), make(tiny_dir, JsonFormat(is_compact=True))
    patterned = make(tiny_dir, JsonFormat("[ ]?"))
    assert takes(default, tokenizer, schema, spaced)
    assert not takes(default, tokenizer, schema, wide)
    assert not takes(compact, tokenizer, schema, spaced)
    assert takes(compact, tokenizer, schema, '{"a":1}')
    assert takes(patterned, tokenizer, schema, '{ "a" : 1 }')
    assert not takes(patterned, tokenizer, schema, spaced)


def test_a_schema_brings_its_own_whitespace(backend: LlguidanceBackend, tokenizer: Tokenizer) -> None:
    options = {"whitespace_flexible": False, "whitespace_pattern": None}
    schema = Grammar("json_schema", json.dumps({"type": "object", "x-guidance": options}))
    assert not takes(backend, tokenizer, schema, "{ }")
    assert takes(backend, tokenizer, schema, "{}")


def test_what_only_annotates_is_left_out(backend: LlguidanceBackend, tokenizer: Tokenizer) -> None:
    """OpenAPI's formats, and switches that are off; a property or a value may have the same names."""
    schema = {
        "type": "object",
        "properties": {"format": {"type": "integer", "format": "int64"}, "x": {"const": {"format": "y"}}},
        "items": {"uniqueItems": False},
        "required": ["format", "x"],
    }
    grammar = Grammar("json_schema", json.dumps(schema))
    assert takes(backend, tokenizer, grammar, '{"format": 5, "x": {"format": "y"}}')
    assert not takes(backend, tokenizer, grammar, '{"format": 5, "x": {}}')
    with pytest.raises(InvalidRequestError, match="uniqueItems"):
        backend.compile(Grammar("json_schema", '{"uniqueItems": true}'))


def test_a_bad_whitespace_pattern() -> None:
    with pytest.raises(ConfigError, match="--constrained-json-whitespace-pattern"):
        check_whitespace(JsonFormat("("))


def test_masks_are_those_of_the_library(backend: LlguidanceBackend) -> None:
    """Token by token, along random outputs; by one call for all, and for each token by itself."""
    properties = {"a": {"type": "string"}, "b": {"type": "array"}}
    schema = {"type": "object", "properties": properties, "additionalProperties": True}  # closed ones force text
    compiled = backend.compile(Grammar("json_schema", json.dumps(schema)))
    matchers = [compiled.new_matcher() for _ in range(5)]
    random = np.random.default_rng(0)
    for _ in range(40):
        masks = np.full((7, backend.mask_width), -1, np.int32)
        live = [(matcher, row) for row, matcher in enumerate(matchers) if not matcher.is_stopped]
        backend.fill(live, masks)
        bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, :VOCAB_SIZE]
        for matcher, row in live:
            alone = np.zeros((1, backend.mask_width), np.int32)
            fill_next_token_bitmask(matcher.native, alone)
            np.testing.assert_array_equal(masks[row], alone[0])
            singly = [matcher.allows(token_id) for token_id in range(VOCAB_SIZE)]
            np.testing.assert_array_equal(bits[row] != 0, singly)
            matcher.accept(int(random.choice(np.nonzero(bits[row])[0])))
            assert matcher.error is None
        assert (masks[5:] == -1).all()


def test_copies_go_their_own_ways(backend: LlguidanceBackend) -> None:
    compiled = backend.compile(Grammar("regex", "[a-z]+"))
    first, second = compiled.new_matcher(), compiled.new_matcher()
    first.accept(67)
    assert not second.allows(EOS)
    assert first.allows(EOS)


def test_grammars_are_kept(tiny_dir: Path) -> None:
    compiler = GrammarCompiler(lambda: make(tiny_dir))
    one = compiler.compile(Grammar("regex", "a"))
    assert compiler.compile(Grammar("regex", "a")) is one
    assert compiler.compile(Grammar("regex", "b")) is not one
    assert isinstance(compiler.compile(Grammar("regex", "(")).result.exception(), InvalidRequestError)
    large = [compiler.compile(Grammar("regex", f"{n}" * 200_000)) for n in range(25)]
    assert compiler.compile(Grammar("regex", "a")) is not one, "as many bytes as are kept have come since"
    assert compiler.compile(Grammar("regex", "24" * 200_000)) is large[-1]
    compiler.close()


@pytest.mark.parametrize(
    ("flags", "message"),
    [({"grammar_backend": "none"}, "--grammar-backend none"), ({"skip_tokenizer_init": True}, "--skip-tokenizer-init")],
)
def test_without_grammars(tiny_dir: Path, flags: dict[str, object], message: str) -> None:
    config = EngineConfig.from_flags({"model_path": str(tiny_dir), **flags})
    with pytest.raises(InvalidRequestError, match=message):
        load_backend(config, tiny_dir, VOCAB_SIZE, [EOS], JsonFormat())


def test_the_tokenizers_own_end_is_known(tiny_dir: Path) -> None:
    """The model's config may name another end-of-sequence token than the tokenizer's."""
    config = EngineConfig.from_flags({"model_path": str(tiny_dir)})
    backend = load_backend(config, tiny_dir, VOCAB_SIZE, [1], JsonFormat())
    matcher = backend.compile(Grammar("regex", "a*")).new_matcher()
    assert matcher.allows(1)
    assert matcher.allows(EOS)


def test_the_library_is_what_was_tried() -> None:
    assert int(llguidance.__version__.partition(".")[0]) == 1


def test_an_engine_needs_no_llguidance() -> None:
    """Where it is not installed, all but grammars works."""
    code = "import sys; sys.modules['llguidance'] = None; import palladio.runtime.core.engine_core, palladio"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
