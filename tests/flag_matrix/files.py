"""Files for rows of the flag matrix: tiny checkpoints, plain and in each stored format, whose layers are large enough
for our C++ on a CPU."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tests.model.format_cases import checkpoint, gpt_oss_checkpoint
from tests.model.gguf_files import as_gguf
from tests.model.quantized_checkpoints import FILE, read_all
from tests.model.safetensors_writer import write_safetensors
from tests.tiny_model import make_checkpoint, write_json

HIDDEN_SIZE: Final = 128  # from here on --cpu-kernels auto chooses our C++
SIZES: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    }
)
EXPERTS: Final = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
CONVERT_SECONDS: Final = 120


@dataclasses.dataclass(frozen=True)
class File:
    """
    Attributes:
        make: writes it to a path that is not there, and gives what --model-path names.
        method: quant_method of its config.json; None: it is plain.
        twin: the plain file that has the same numbers; None: it is the folder `wide` in it.
        source: the file that `palladio convert` reads; None: it is not converted.
        bits: that the numbers were rounded to; 16: they are the twin's.
    """

    make: Callable[..., Path]
    method: str | None = None
    twin: str | None = None
    source: str | None = None
    bits: int = 16


HEAD_FACTOR: Final = 0.5  # logits spread by 0.8 then: 8 bits change the prompt's mean by up to 0.015, 4 bits by 0.05


def _with_factor(path: Path) -> Path:
    """The same checkpoint with smaller logits, also where it is written a second time, as plain numbers."""
    for file in (path / FILE, path / "wide" / FILE):
        if file.is_file():
            tensors = read_all(file)
            head = tensors["lm_head.weight"]
            write_safetensors(file, {**tensors, "lm_head.weight": (head * HEAD_FACTOR).astype(head.dtype)})
    return path


def _plain(path: Path, family: str, **more: Any) -> Path:
    return _with_factor(make_checkpoint(path, family, **SIZES, **more))


def _stored(case: str, path: Path, family: str = "qwen3", **more: Any) -> Path:
    return _with_factor(checkpoint(path, case, family, **SIZES, **more))


def _fbgemm(path: Path) -> Path:
    """The format of Llama 3.1's own float8 checkpoints: a scale per channel."""
    made = _stored("ct float8", path)
    config = json.loads((made / "config.json").read_text())
    write_json(made / "config.json", config | {"quantization_config": {"quant_method": "fbgemm_fp8"}})
    return made


def _gguf(path: Path) -> Path:
    return as_gguf(make_checkpoint(path, "qwen3", **SIZES), "qwen3", lambda name: "Q8_0")


def _mxfp4(path: Path) -> Path:
    own = {"intermediate_size": HIDDEN_SIZE, "head_dim": 32, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    return gpt_oss_checkpoint(path, hidden_size=HIDDEN_SIZE, num_key_value_heads=2, **own)


def _converted(flags: str, path: Path, source: Path) -> Path:
    """By the command, in a process of its own."""
    command = [sys.executable, "-m", "palladio", "convert", str(source), str(path), *flags.split()]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=CONVERT_SECONDS, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    return path


FILES: Final[Mapping[str, File]] = MappingProxyType(
    {
        "plain": File(functools.partial(_plain, family="qwen3"), twin="plain"),
        "experts": File(functools.partial(_plain, family="qwen3_moe", **EXPERTS), twin="experts"),
        "int8": File(functools.partial(_stored, "ct int8"), "compressed-tensors"),
        "int8 experts": File(
            functools.partial(_stored, "ct int8", family="qwen3_moe", **EXPERTS), "compressed-tensors"
        ),
        "awq": File(functools.partial(_stored, "awq"), "awq"),
        "gptq": File(functools.partial(_stored, "gptq"), "gptq"),
        "gptq of 8 bits": File(functools.partial(_stored, "gptq 8 bits by channel"), "gptq"),
        "fp8": File(functools.partial(_stored, "fp8 with static activations"), "fp8"),
        "fbgemm": File(_fbgemm, "fbgemm_fp8"),
        "modelopt": File(functools.partial(_stored, "modelopt"), "modelopt"),
        "mxfp4": File(_mxfp4, "mxfp4"),
        "gguf": File(_gguf, "gguf"),
        "converted plain": File(functools.partial(_converted, ""), twin="plain", source="plain"),
        "converted to int8": File(
            functools.partial(_converted, "--quantization int8"), twin="plain", source="plain", bits=8
        ),
        "converted to int4": File(
            functools.partial(_converted, "--quantization int4"), twin="plain", source="plain", bits=4
        ),
        "converted int8": File(functools.partial(_converted, ""), "compressed-tensors", source="int8"),
    }
)


class Folder:
    """Files in a folder, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Path] = {}

    def path(self, name: str) -> Path:
        """Return the path for --model-path."""
        if name not in self._made:
            file, to = FILES[name], self._folder / name.replace(" ", "-")
            self._made[name] = file.make(to) if file.source is None else file.make(to, self.path(file.source))
        return self._made[name]

    def twin(self, name: str) -> Path:
        """The plain file with the same numbers."""
        file = FILES[name]
        if file.twin is not None:
            return self.path(file.twin)
        if file.source is not None:
            return self.twin(file.source)
        path = self.path(name)
        return (path if path.is_dir() else path.parent) / "wide"
