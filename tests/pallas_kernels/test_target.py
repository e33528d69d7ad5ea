"""Which kind of CPU Linux describes."""

import pytest

from palladio.pallas_kernels.target import cpu_kind

SKYLAKE = "avx2 fma avx512f avx512dq avx512bw avx512vl"


@pytest.mark.parametrize(
    ("vendor", "flags", "kind"),
    [
        ("GenuineIntel", f"{SKYLAKE} avx512_bf16 amx_tile amx_bf16", "amx_bf16"),
        ("GenuineIntel", f"{SKYLAKE} avx512_bf16", "avx512"),
        ("AuthenticAMD", f"{SKYLAKE} avx512_bf16", "avx512_bf16"),
        ("GenuineIntel", SKYLAKE, "avx512"),
        ("GenuineIntel", "avx2 fma avx512f", "avx2"),
        ("AuthenticAMD", "avx2 fma", "avx2"),
        ("AuthenticAMD", "sse4_2", ""),
    ],
)
def test_the_best_way_to_multiply_bfloat16(vendor: str, flags: str, kind: str) -> None:
    assert cpu_kind(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\n") == kind


def test_another_architecture_has_no_kind() -> None:
    assert cpu_kind("processor\t: 0\nFeatures\t: asimd i8mm\n") == ""
