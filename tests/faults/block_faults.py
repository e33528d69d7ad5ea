"""Faults of our own C++ for CPUs: products, attention, the search for the likeliest token."""

from tests.faults.fault import Fault

_ATTENTION = ("tests/pallas_kernels/test_cpu_native.py",)
_ARGMAX = ("tests/pallas_kernels/test_row_argmax.py",)
BLOCK_FAULTS: tuple[Fault, ...] = (
    Fault(
        "keys behind the last one count where queries share a head with few others",
        "pallas_kernels/cpu_native/attention_spans.h",
        "weights = is_real ? weights : Eight{};",
        "",
        _ATTENTION,
    ),
    Fault(
        "NaN is no largest number on a CPU",
        "pallas_kernels/cpu_native/row_argmax.cc",
        "unordered |= (part != part) | (part2 != part2);",
        "",
        _ARGMAX,
    ),
    Fault(
        "inputs beyond the last whole vector are left out",
        "pallas_kernels/cpu_native/product_blocks.h",
        "if (whole < stop) AddStep<Kernel, R, O>",
        "if (false) AddStep<Kernel, R, O>",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "sums of a later part of the inputs replace those before",
        "pallas_kernels/cpu_native/product_blocks.h",
        "sums = _mm_add_ps(sums, load(y, next));",
        "",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "all experts have the first one's matrix",
        "pallas_kernels/cpu_native/multiply.cc",
        "of.w + number++ * of.outputs * inputs",
        "of.w + 0 * number++",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "products of many rows forget all inputs but those of the last panel",
        "pallas_kernels/cpu_native/output_lanes.h",
        "is_first ? Outputs{} : all[r][v]",
        "Outputs{}",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "rows of padding have the first row's products",
        "pallas_kernels/cpu_native/products.h",
        "const float* last = y + (rows - 1) * outputs;",
        "const float* last = y;",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "a row of a smaller block is packed as in a longer one",
        "pallas_kernels/cpu_native/products.h",
        "blocks.SizeAt(first) * vector",
        "blocks.most * vector",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "the 128 that makes int8 unsigned is not subtracted",
        "pallas_kernels/cpu_native/products_avx512.h",
        "return _mm512_loadu_si512(p.starts + (row * p.parts + part) * kLanes);",
        "return _mm512_setzero_si512();",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "rows of int8 products that are not finite are served as zeros",
        "pallas_kernels/cpu_native/products_avx2.h",
        "return std::numeric_limits<float>::quiet_NaN();",
        "return 0;",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "spans of one request are joined as if they had one peak",
        "pallas_kernels/cpu_native/attention_spans.h",
        "const float weight = std::exp(state[r] - peak);",
        "const float weight = 1.0f;",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "half of a key's numbers are left out on a CPU without AVX-512",
        "pallas_kernels/cpu_native/attention_spans.h",
        "place < 16; place += L",
        "place < L; place += L",
        _ATTENTION,
    ),
    Fault(
        "a window's first key is one too early",
        "pallas_kernels/cpu_native/attention.cc",
        "std::max<int64_t>(0, last - a.window)",
        "std::max<int64_t>(0, last - a.window - 1)",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "a token of a prompt sees the one after it on a CPU",
        "pallas_kernels/cpu_native/attention_blocks.h",
        "number <= b.position[v]",
        "number <= b.position[v] + 1",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "tiles of a chunk's keys begin where its window does, not at multiples of their size",
        "pallas_kernels/cpu_native/attention_blocks.h",
        "std::max(from, blocks[i].low / kTile * kTile)",
        "std::max(from, blocks[i].low)",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "every kv head is written with the first one's key and value on a CPU",
        "pallas_kernels/cpu_native/library.cc",
        "rows + (t * K + k) * width",
        "rows + t * K * width",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "a deterministic engine has kernels that round a chunk differently",
        "runtime/core/plan/kernel_choice.py",
        "    if execution.deterministic:\n        return False\n",
        "",
        ("tests/runtime/core/test_determinism.py",),
    ),
)
