"""Faults of kernels and of what a device decides; see `faults`."""

from tests.faults.fault import Fault

DEVICE_FAULTS = (
    Fault(
        "a run of new rows is read from where its window would begin elsewhere",
        "pallas_kernels/kv_cache_update/tpu.py",
        "skipped = token[i] - _window(token[i], chunk, num_tokens)",
        "skipped = lax.rem(token[i], ALIGNMENT)",
        ("tests/pallas_kernels/test_kv_cache_update.py",),
    ),
    Fault(
        "a TPU's pages are no whole tiles",
        "model/cache/kv_cache.py",
        "size * page.dtype.itemsize >= LEAST_ROW_BYTES",
        "size * page.dtype.itemsize >= LEAST_ROW_BYTES // 2",
        ("tests/runtime/core/plan/test_sizing.py",),
    ),
    Fault(
        "a CPU compiles everything before the first request",
        "runtime/core/plan/platform_defaults.py",
        'compile="background"',
        'compile="full"',
        ("tests/runtime/core/plan/test_sizing.py",),
    ),
    Fault(
        "the whole pool of a CPU is resident from the start",
        "runtime/execution/state/device_state.py",
        '.platform == "cpu"',
        '.platform == "none"',
        ("tests/runtime/execution/state/test_device_state.py",),
    ),
    Fault(
        "attention on a CPU gathers the elements of pages",
        "pallas_kernels/ragged_paged_attention/xla.py",
        "MOST_COPIES = 8",
        "MOST_COPIES = 0",
        ("tests/pallas_kernels/test_ragged_paged_attention.py",),
    ),
    Fault(
        "a block of keys waits for some of its pages",
        "pallas_kernels/ragged_paged_attention/tpu/tpu_pages.py",
        "pl.when(number & (1 << power) != 0)",
        "pl.when(number & (2 << power) != 0)",
        ("tests/pallas_kernels/test_attention_tpu.py",),
    ),
)
