"""A model's tokenizer and grammars, and tools, for tests of ToolPlan."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from palladio.runtime.grammar.backend import BackendSettings
from palladio.runtime.grammar.llguidance_backend import LlguidanceBackend
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.http.tool_calls.tool_texts import WEATHER

EOS = "<|eos|>"


class Model:
    """A tokenizer of bytes, in which `marks` are tokens of their own, and its grammars."""

    def __init__(self, directory: Path, marks: tuple[str, ...], *, special: bool = True) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        self.fast = FastTokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
        self.fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self.fast.decoder = decoders.ByteLevel()
        self.fast.add_special_tokens([EOS])
        self.fast.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks])
        directory.mkdir(exist_ok=True)
        self.fast.save(str(directory / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS}
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
        self.tokenizer = Tokenizer.load(directory)
        self.eos_id = self.fast.token_to_id(EOS)
        self.backend = LlguidanceBackend(
            BackendSettings(self.fast.to_str(), self.fast.get_vocab_size(), (self.eos_id,))
        )

    def allowed(self, grammar: Grammar, text: str) -> tuple[str, bool]:
        """Return the part of the text that the grammar accepts, and whether the output may end there."""
        matcher = self.backend.compile(grammar).new_matcher().native
        ids = self.fast.encode(text, add_special_tokens=False).ids
        count = matcher.try_consume_tokens(ids)
        return self.fast.decode(ids[:count], skip_special_tokens=False), matcher.is_accepting()

    def walk(self, grammar: Grammar, seed: int) -> str | None:
        """Some text that the grammar allows; None: it found no end."""
        matcher, choose = self.backend.compile(grammar).new_matcher().native, random.Random(seed)
        ids: list[int] = []
        while len(ids) < 600:
            bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            options = np.flatnonzero(bits).tolist()
            closing = [i for i in options if i == self.eos_id or self.tokenizer.token_text(i) in '"})],']
            token_id = choose.choice(closing if closing and choose.random() < 0.7 else options)
            if token_id == self.eos_id:
                return self.fast.decode(ids, skip_special_tokens=False)
            assert matcher.consume_token(token_id)
            ids.append(token_id)
        return None


def tool(name: str, parameters: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


TOOLS = [tool("get_weather", WEATHER), tool("now")]


STRICT = [tool("get_weather", WEATHER, strict=True), tool("now", strict=True)]


SCHEMAS: dict[str, dict[str, Any]] = {
    "plan_trip": {
        "type": "object",
        "properties": {
            "to": {"enum": ["Paris", "Rome", "Ürümqi"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 30},
            "sure": {"type": "boolean"},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
            "with": {"anyOf": [{"$ref": "#/$defs/who"}, {"type": "null"}]},
        },
        "required": ["days", "to"],
        "additionalProperties": False,
        "$defs": {"who": {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}},
        "title": "PlanTrip",
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    },
    "only_optional": {
        "type": "object",
        "properties": {"x": {"type": "boolean"}, "y": {"type": "boolean"}},
        "additionalProperties": False,
    },
    "nothing": {"type": "object"},
}
