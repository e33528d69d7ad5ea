"""Faults of our own C++ for CPUs: products, the calls that compute half a layer, the search for the likeliest token."""

from tests.faults.fault import Fault

_BLOCKS = ("tests/model/test_row_blocks.py",)
_ATTENTION = ("tests/pallas_kernels/test_cpu_native.py",)
_ARGMAX = ("tests/runtime/execution/test_row_argmax.py",)
BLOCK_FAULTS: tuple[Fault, ...] = (
    Fault(
        "a block's norm does not subtract the mean",
        "pallas_kernels/cpu_native/row_math.h",
        "norm.is_centered ? MeanOf(x, n) : 0.0f",
        "0.0f",
        _BLOCKS,
    ),
    Fault(
        "a block's scale is not one more where the norm's is",
        "model/row_blocks.py",
        'added = 1.0 if norm.spec.scaling == "plus_one" else 0.0',
        "added = 0.0",
        _BLOCKS,
    ),
    Fault(
        "a block does not rotate keys",
        "pallas_kernels/cpu_native/layer_blocks.h",
        "RotateHead(own + G * H, cos, sin, b.half,",
        "RotateHead(own + G * H, cos, sin, 0,",
        _BLOCKS,
    ),
    Fault(
        "a block adds to what it takes in, not to the residual",
        "model/row_blocks.py",
        "_matrix(mlp.down, x), _ends(norms, factor, x, residual)",
        "_matrix(mlp.down, x), _ends(norms, factor, x, x)",
        _BLOCKS,
    ),
    Fault(
        "products of float32 forget all inputs but the last 256",
        "pallas_kernels/cpu_native/dense.h",
        "sums[r][v] = from ? Sums",
        "sums[r][v] = false ? Sums",
        _BLOCKS,
    ),
    Fault(
        "blocks take more rows than products do",
        "model/row_blocks.py",
        "x.shape[0] <= few",
        "few > 0",
        _BLOCKS,
    ),
    Fault(
        "keys behind the last one count where queries share a head with few others",
        "pallas_kernels/cpu_native/attention_spans.h",
        "weights = is_real ? weights : Eight{};",
        "",
        _ATTENTION,
    ),
    Fault(
        "NaN is no largest number on a CPU",
        "pallas_kernels/cpu_native/row_math.h",
        "unordered |= part != part;",
        "",
        _ARGMAX,
    ),
    Fault(
        "inputs beyond the last whole vector are left out",
        "pallas_kernels/cpu_native/blocks.inc",
        "if (whole < stop) {",
        "if (false) {",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "sums of a later part of the inputs replace those before",
        "pallas_kernels/cpu_native/blocks.inc",
        "sums = _mm_add_ps(sums, load(y, next));",
        "",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "all experts have the first one's matrix",
        "pallas_kernels/cpu_native/multiply.h",
        "of.w + number++ * of.outputs * inputs",
        "of.w + 0 * number++",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "rows of padding have the first row's products",
        "pallas_kernels/cpu_native/products.h",
        "p.y + (p.rows - 1) * p.outputs",
        "p.y",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
    Fault(
        "a row of a smaller last block is packed as in a whole one",
        "pallas_kernels/cpu_native/multiply.h",
        "std::min(block, rows - first) * vector",
        "block * vector",
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
        "a window's first key is one too early",
        "pallas_kernels/cpu_native/attention.h",
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
        "rows.typed_data() + (t * K + k) * width",
        "rows.typed_data() + t * K * width",
        ("tests/pallas_kernels/test_cpu_native.py",),
    ),
)
