"""An engine on a GGUF file: weights of 4 and 8 bits through compiled programs."""

from pathlib import Path
from typing import Any

import pytest

from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.many_devices import call_with_devices
from tests.model.gguf_files import as_gguf
from tests.runtime.text.tokenizers.test_gguf_tokenizer import metadata
from tests.runtime.tiny_engine import FLAGS, Collector, create_core, random_prompt
from tests.tiny_model import make_checkpoint
from tests.tiny_tokenizer import build_tiny_tokenizer

LAZY: dict[str, Any] = {"load_format": "auto", "compile": "lazy", "dtype": "float32", "max_total_tokens": 256}


def tokens(path: Path, **flags: Any) -> list[list[int]]:
    """Greedy, of two prompts. Programs are compiled before they see an array."""
    core = create_core(path, **{**FLAGS, **LAZY, "fail_on_recompile": False, "cuda_graph_bs": (2,), **flags})
    collector = Collector(core)
    for number in range(2):
        collector.add(str(number), random_prompt(7, salt=number), max_tokens=6)
    collector.run()
    return [collector.tokens[str(number)] for number in range(2)]


def test_a_gguf_file_is_served(tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    path = make_checkpoint(tmp_path, "qwen3", num_hidden_layers=1, head_dim=64, **sizes)
    build_tiny_tokenizer(tmp_path)
    tokenizer = metadata(tmp_path, model="gpt2", pre="gpt-2", eos_token_id=2)
    del tokenizer["general.architecture"]
    file = as_gguf(path, "qwen3", lambda name: "Q6_K" if "down" in name else "Q4_K", tokenizer)
    assert tokens(file, quantization="gguf") == tokens(tmp_path / "wide")
    assert Tokenizer.load(file).encode("Hello") == Tokenizer.load(tmp_path).encode("Hello")


def tokens_over(path: str, tp_size: int) -> list[list[int]]:
    flags: dict[str, Any] = {"quantization": "gguf", "skip_tokenizer_init": True, "compilation_cache_dir": ""}
    return tokens(Path(path), tp_size=tp_size, **flags)


@pytest.mark.slow  # tests/model/loading/test_gguf_parts.py has its logits
def test_a_split_file_over_two_devices(tmp_path: Path) -> None:
    """Each device has 48 inputs of the projection down: they are padded to two groups of 32."""
    sizes = {"hidden_size": 256, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    path = make_checkpoint(tmp_path, "qwen3", num_hidden_layers=1, head_dim=64, **sizes)
    kinds = {"down_proj": "Q5_0", "o_proj": "IQ4_NL"}
    file = as_gguf(path, "qwen3", lambda name: kinds.get(name.split(".")[-2], "Q4_1"), num_parts=3)
    expected = tokens(tmp_path / "wide", skip_tokenizer_init=True)
    assert call_with_devices(__name__, "tokens_over", str(file), 2) == expected
