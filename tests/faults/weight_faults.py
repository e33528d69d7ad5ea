"""Faults of quantized weights: their formats, groups, scales and zero points."""

from tests.faults.fault import Fault

FORMATS = ("tests/model/loading/test_formats.py",)
_NARROW = ("tests/model/weights/test_narrow.py",)
WEIGHT_FAULTS: tuple[Fault, ...] = (
    Fault(
        "one row of bfloat16 is not padded",
        "pallas_kernels/narrow_matmul/config.py",
        "min_rows: int = 2",
        "min_rows: int = 1",
        _NARROW,
    ),
    Fault(
        "products of bfloat16 have results of bfloat16",
        "pallas_kernels/narrow_matmul/xla.py",
        "preferred_element_type=jnp.float32)",
        "preferred_element_type=jnp.bfloat16).astype(jnp.float32)",
        _NARROW,
    ),
    Fault(
        "experts lie as bfloat16, of which slices are widened",
        "model/weights/narrow.py",
        'is_bits=axes[0] == "experts"',
        "is_bits=False",
        _NARROW,
    ),
    Fault(
        "a block of experts' rows begins where its group does",
        "pallas_kernels/grouped_matmul/blocks.py",
        "group_sizes[group] + before * size",
        "group_sizes[group]",
        _NARROW,
    ),
    Fault(
        "a CPU keeps bfloat16 that the files do not have",
        "runtime/core/sizing.py",
        "return has_bfloat16 and smallest",
        "return smallest",
        ("tests/runtime/core/test_sizing.py",),
    ),
    Fault(
        "tables of tuned sizes are not part of a program's key",
        "runtime/execution/program_store.py",
        'in (".py", ".json")',
        'in (".py",)',
        ("tests/runtime/execution/test_program_cache.py",),
    ),
    Fault(
        "a tied head's scale is dropped",
        "model/weights/scaled.py",
        "return out * scales",
        "return out",
        ("tests/model/loading/test_quantized_weights.py",),
    ),
    Fault(
        "a grain is cut in two",
        "model/weights/kinds.py",
        "math.gcd(group, size // num_parts)",
        "group",
        ("tests/model/loading/test_quantized_weights.py",),
    ),
    Fault(
        "scales of a block are those of the block before",
        "model/weights/file_matrix.py",
        "np.repeat(array, self.block[0], axis=-2)",
        "np.repeat(np.roll(array, 1, -2), self.block[0], axis=-2)",
        ("tests/model/loading/test_quantized_weights.py",),
    ),
    Fault(
        "a float8 scale is divided by, as its name says",
        "model/formats/fp8.py",
        "scales_of(scale, scales).reshape(shape)",
        "1 / scales_of(scale, scales).reshape(shape)",
        FORMATS,
    ),
    Fault(
        "AWQ's numbers are unpacked in order",
        "model/formats/awq.py",
        "ORDER = (0, 2, 4, 6, 1, 3, 5, 7)",
        "ORDER = (0, 1, 2, 3, 4, 5, 6, 7)",
        FORMATS,
    ),
    Fault(
        "the two floats of a byte change places",
        "model/formats/mxfp4.py",
        "[blocks & 15, blocks >> 4]",
        "[blocks >> 4, blocks & 15]",
        FORMATS,
    ),
    Fault(
        "GPTQ's zero points are taken as they are stored",
        "model/formats/gptq.py",
        "lows += np.int8(1)",
        "lows += np.int8(0)",
        FORMATS,
    ),
    Fault(
        "compressed-tensors' zero points are unpacked along the inputs",
        "model/formats/compressed_tensors.py",
        "unpack_rows(zeros, scheme.bits)[: len(values)]",
        "unpack_columns(zeros, scheme.bits).reshape(-1, num_groups)[: len(values)]",
        FORMATS,
    ),
    Fault(
        "a product adds zero points",
        "model/weights/scaled.py",
        "out -= zeros.astype",
        "out += zeros.astype",
        ("tests/model/weights/test_weights_as_values.py",),
    ),
    Fault(
        "4 bits are counted as 8",
        "model/functional.py",
        "jax.dtypes.itemsize_bits(jnp.dtype(dtype)) // 8",
        "jnp.dtype(dtype).itemsize",
        FORMATS,
    ),
    Fault(
        "activations of 8 bits are not scaled back",
        "model/weights/scaled.py",
        "out *= of_rows.reshape(-1, *ones)",
        "out *= 1.0",
        ("tests/model/weights/test_weights_as_values.py",),
    ),
)
