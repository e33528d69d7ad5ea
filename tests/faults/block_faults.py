"""Faults of the calls that compute half a layer on a CPU, and of the search for the likeliest token."""

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
)
