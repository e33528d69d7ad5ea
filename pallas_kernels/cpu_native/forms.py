"""Forms of the library: the CPUs that it is compiled for, each with the instructions that its kernels use."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

Form = Literal["avx2", "avx512", "avx512_vnni", "avx512_bf16"]
FLAGS: Final[Mapping[Form, tuple[str, ...]]] = MappingProxyType(
    {
        "avx2": ("-march=x86-64-v3",),
        "avx512": ("-march=x86-64-v4",),
        "avx512_vnni": ("-march=x86-64-v4", "-mavx512vnni"),
        "avx512_bf16": ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"),
    }
)
"""Compiler flags. Kernels find their instructions by them: bfloat16 by AVX-512's instruction for it or widened to
float32, int8 by VNNI or by AVX2."""

_V3: Final = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm"})
_V4: Final = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})


def forms_of(info: str) -> tuple[Form, ...]:
    """Return the forms that a CPU can run, by its description in Linux, the best first. Empty: it is below
    x86-64-v3."""
    found = re.search(r"^flags\s*:(.*)$", info, re.MULTILINE)
    flags = set(found[1].split()) if found else set[str]()
    if not flags >= _V3:
        return ()
    if not flags >= _V4:
        return ("avx2",)
    if "avx512_vnni" not in flags:
        return ("avx512", "avx2")
    if "avx512_bf16" not in flags:
        return ("avx512_vnni", "avx512", "avx2")
    # On Intel's cores the instruction for 32 products of bfloat16 is slower than two for 16 of float32.
    if re.search(r"^vendor_id\s*:\s*GenuineIntel$", info, re.MULTILINE):
        return ("avx512_vnni", "avx512_bf16", "avx512", "avx2")
    return ("avx512_bf16", "avx512_vnni", "avx512", "avx2")
