"""Our own C++ in tests: the form for this machine's CPU, and others that it can run."""

import shutil
from pathlib import Path
from typing import Final

import pytest

from palladio.pallas_kernels.cpu_native import library
from palladio.pallas_kernels.cpu_native.forms import Form, forms_of
from tests import compile_cache

# avx512 has the products of avx512_vnni for bfloat16 and those of avx2 for int8.
_FORMS: Final[tuple[Form, ...]] = ("avx512_vnni", "avx512_bf16", "avx2")


def _able() -> tuple[Form, ...]:
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ()
    return forms_of(info) if any(map(shutil.which, library.COMPILERS)) else ()


ABLE: Final = _able()
needs_compiler = pytest.mark.skipif(not ABLE, reason="needs a C++ compiler, and AVX2 at least")
every_form = pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=pytest.mark.skipif(form not in ABLE, reason="this CPU cannot")) for form in _FORMS],
)
"""For tests that have loaded them."""


def load_every_form() -> None:
    """Load all forms from the folder of the tests' engines, since compiling takes longer than all tests of them."""
    for form in (None, *(form for form in _FORMS if form in ABLE)):
        library.load(compile_cache.native_folder(), form=form)
