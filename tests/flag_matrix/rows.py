"""The rows of the flag matrix: each documented value of the flags that choose kernels, dtypes and layouts, with a plain
and with a quantized file. A row is one `palladio serve` in a process of its own, and one request."""

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal

from palladio.model.config.quantization_config import FORMATS
from palladio.model.config.quantization_flag import QUANTIZATIONS
from palladio.runtime.interface.config.cache_config import CacheConfig
from palladio.runtime.interface.config.execution_config import ExecutionConfig
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.config.speculative_config import SpeculativeConfig
from tests.flag_matrix.files import FILES

TOLERANCES: Final[Mapping[int, float]] = MappingProxyType({16: 1e-3, 8: 0.02, 4: 0.1})
"""Tolerance of the prompt's mean log-probability, by bits of rounded numbers."""


@dataclasses.dataclass(frozen=True)
class Row:
    """
    Attributes:
        flags: of `palladio serve`, besides the model and the limits.
        file: of FILES.
        bits: that the flags round weights, activations or the cache to; 16: they round nothing, or to 16 bits.
        refused: what the error says, as a regular expression; None: the server serves.
        devices: that jax finds.
        usual: flags of the server that it is compared with, on the plain file with the same numbers.
        compiles: `palladio compile` makes a folder of programs first, which the server is given.
    """

    flags: str = ""
    file: str = "plain"
    bits: Literal[16, 8, 4] = 16
    refused: str | None = None
    devices: int = 1
    usual: str = ""
    compiles: bool = False

    @property
    def name(self) -> str:
        how = " with a folder of programs" if self.compiles else ""
        return f"{self.file}{how}: {self.flags or 'no flags'}"

    @property
    def values(self) -> Mapping[str, str]:
        """Flag → value; a switch is `on`."""
        words, found = self.flags.split(), dict[str, str]()
        for number, word in enumerate(words):
            if word.startswith("--"):
                value = words[number + 1] if number + 1 < len(words) else "--"
                found[word[2:].replace("-", "_")] = "on" if value.startswith("--") else value
        return found

    @property
    def tolerance(self) -> float:
        """Tolerance of the mean log-probability."""
        return TOLERANCES[min(self.bits, FILES[self.file].bits)]


def documented() -> Mapping[str, tuple[str, ...]]:
    """Flag → values that need rows: the choices that the configs declare, which docs/flags.md is made of."""

    def choices(config: type, name: str) -> tuple[str, ...]:
        hint = typing.get_type_hints(config)[name]
        options = [hint, *typing.get_args(hint)]
        literal = next(option for option in options if typing.get_origin(option) is Literal)
        return typing.get_args(literal)

    return {
        "quantization": QUANTIZATIONS,
        "load_format": choices(ModelSource, "load_format"),
        "dtype": choices(ModelSource, "dtype"),
        "kv_cache_dtype": choices(CacheConfig, "kv_cache_dtype"),
        "attention_backend": choices(ExecutionConfig, "attention_backend"),
        "cpu_kernels": choices(ExecutionConfig, "cpu_kernels"),
        "kernel_check": choices(ExecutionConfig, "kernel_check"),
        "compile": choices(ExecutionConfig, "compile"),
        "speculative_algorithm": choices(SpeculativeConfig, "speculative_algorithm"),
        "deterministic": ("on",),
        "tp_size": ("1", "2"),
        "dp_size": ("1", "2"),
        "ep_size": ("1", "2"),
    }


def missing(rows: Iterable[Row]) -> list[str]:
    """List values without a row: a value with a plain or with a quantized file, a format of files, a folder."""
    rows = list(rows)
    found = []
    for is_quantized in (False, True):
        of_kind = [row for row in rows if (FILES[row.file].method is not None) == is_quantized]
        kind = "a quantized" if is_quantized else "a plain"
        for flag, values in documented().items():
            has = {row.values.get(flag) for row in of_kind}
            found += [f"--{flag.replace('_', '-')} {value} with {kind} file" for value in values if value not in has]
        if not any(FILES[row.file].source for row in of_kind):
            found.append(f"a converted folder of {kind} file")
        if not any(row.compiles for row in of_kind):
            found.append(f"a folder of programs of {kind} file")
    served = {FILES[row.file].method for row in rows if row.refused is None}
    return found + [f"a file of the format {method}" for method in FORMATS if method not in served]


DEFAULTS: Final = (
    "--load-format auto --dtype auto --kv-cache-dtype auto --attention-backend auto --cpu-kernels auto --compile auto "
    "--kernel-check auto "
    "--tp-size 1 --dp-size 1 --ep-size 1"
)
BOTH: Final = ("plain", "int8")
_NOT_QUANTIZED: Final = "--quantization {}: the checkpoint is not quantized"
_OTHER: Final = "--quantization {}: the checkpoint is quantized already, in the format"
# Interpreted, it needs JAX 0.11; and it takes no heads as small as these files have.
_NOT_HERE: Final = "--attention-backend gpu_mosaic cannot run this model: .*; or use --attention-backend auto"
_FITTING: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "awq": ("awq", "awq_marlin", "moe_wna16", "int4", "dequantize"),
        "gptq": ("gptq", "gptq_marlin", "moe_wna16", "int4"),
        "gptq of 8 bits": ("gptq", "int8"),
        "fp8": ("fp8", "fbgemm_fp8", "dequantize"),
        "fbgemm": ("fbgemm_fp8",),
        "modelopt": ("modelopt", "modelopt_fp8", "fp8"),
        "mxfp4": ("mxfp4", "dequantize"),
        "gguf": ("gguf", "int8"),
        "int8": ("int8", "compressed-tensors", "compressed_tensors", "dequantize"),
    }
)
_MADE: Final[Mapping[str, Literal[8, 4]]] = MappingProxyType(
    {"int8": 8, "w8a8_int8": 8, "fp8": 8, "w8a8_fp8": 8, "int4": 4}
)
_ROUNDED_CACHES: Final = ("fp8", "fp8_e4m3", "fp8_e5m2", "int8")
MODULES: Final = "int4,lm_head=dense,re:.*down_proj=int8"


def _quantizations() -> Iterable[Row]:
    for name in QUANTIZATIONS:
        made = _MADE.get(name)
        if made is None:
            yield Row(f"--quantization {name}", refused=_NOT_QUANTIZED.format(name))
        else:
            yield Row(f"--quantization {name}", bits=made)
        if name not in (*_FITTING["int8"], "w8a8_int8"):
            yield Row(f"--quantization {name}", "int8", refused=_OTHER.format(name))
    yield Row(f"--quantization {MODULES}", bits=4)
    yield Row("--quantization w8a8_int8", "int8", bits=8)
    yield Row("--quantization w8a8_fp8", "fp8", bits=8)
    for file, names in _FITTING.items():
        yield Row(file=file)
        yield from (Row(f"--quantization {name}", file) for name in names)


def _of_both() -> Iterable[Row]:
    known = documented()
    for file in BOTH:
        yield Row(DEFAULTS, file)
        for name in known["dtype"]:
            if name != "auto":  # a number of bfloat16 has 8 bits, the first of which is not stored, and an exponent
                yield Row(f"--dtype {name}", file, bits=8 if name == "bfloat16" else 16)
        for name in known["kv_cache_dtype"]:
            if name != "auto":
                yield Row(f"--kv-cache-dtype {name}", file, bits=8 if name in _ROUNDED_CACHES else 16)
        for name in known["attention_backend"]:
            if name != "auto":
                yield Row(f"--attention-backend {name}", file, refused=_NOT_HERE if name == "gpu_mosaic" else None)
        yield from (Row(f"--cpu-kernels {name}", file) for name in known["cpu_kernels"] if name != "auto")
        yield from (Row(f"--kernel-check {name}", file) for name in known["kernel_check"] if name != "auto")
        yield from (Row(f"--compile {name}", file) for name in known["compile"] if name != "auto")
        yield Row("--speculative-algorithm NGRAM", file)
        yield Row("--deterministic", file)
        yield Row("--tp-size 2", file, devices=2)
        yield Row("--dp-size 2", file, devices=2)
        yield Row("--load-format safetensors", file)
        yield Row("--load-format orbax", file, refused="palladio convert")
        rounded: Literal[16, 8] = 16 if file == "plain" else 8  # random numbers become int8, as the file's would be
        yield Row("--load-format dummy", file, bits=rounded, usual="--load-format dummy --cpu-kernels xla")
        yield Row("--compiled-dir {programs}", file, compiles=True)
    for file in ("experts", "int8 experts"):
        yield Row(file=file)
        yield Row("--tp-size 2 --ep-size 2", file, devices=2)
    yield Row("--quantization int8", "experts", bits=8)


def _converted() -> Iterable[Row]:
    for file in ("converted plain", "converted to int8", "converted to int4", "converted int8"):
        yield Row(file=file)
    yield Row("--load-format orbax", "converted to int8")
    yield Row("--quantization w8a8_int8", "converted to int8")
    yield Row("--quantization int4", "converted to int8", refused="convert again with `palladio convert")


ROWS: Final[tuple[Row, ...]] = (*_quantizations(), *_of_both(), *_converted())

DEFAULT_ROWS: Final[tuple[Row, ...]] = (
    Row("--quantization int8", bits=8),
    Row("--kv-cache-dtype int8", bits=8),
)
"""The rows of `make test`; `make flag-matrix` has all."""
