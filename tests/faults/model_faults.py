"""Faults of models, their weights and what prompts hold; see `faults`."""

from tests.faults.fault import Fault

_SCHEDULING, _CORE = "tests/runtime/scheduling/", "tests/runtime/core/"
PARTS = (_SCHEDULING + "test_prompt_parts.py", _CORE + "test_input_embeds.py")
LOADER = (
    "tests/model/loading/test_weights.py",
    "tests/model/loading/test_coverage.py",
    "tests/model/test_against_transformers.py",
)
EXPERTS = ("tests/model/test_experts.py", "tests/model/test_against_transformers.py")
_SCHEDULER, _ROOM = "runtime/scheduling/scheduler.py", "runtime/scheduling/"
_MANAGER, _TREE = "runtime/scheduling/cache_manager.py", "runtime/scheduling/radix_cache.py"
FORMATS = ("tests/model/loading/test_formats.py",)
_LOADING = "model/loading/"
_PLAN, _TRANSFORMS, _FILE = (
    _LOADING + name for name in ("stored_weights.py", "weight_transforms.py", "safetensors_file.py")
)

MODEL_FAULTS = (
    # Parts of prompts
    Fault("the media's digest is left out of the key", _ROOM + "radix_node.py", "(p.digest, p.is", '("", p.is', PARTS),
    Fault(
        "a chunk divides what one step has to compute",
        _SCHEDULER,
        "count = request.uncut(start + count) - start",
        "count = max(count, request.uncut(start + count) - start)",
        PARTS,
    ),
    Fault(
        "a prefix ends within what one step has to compute",
        _MANAGER,
        "keys = keys[: self._num_cached(request, keys)]",
        "keys = keys[: len(keys)]",
        PARTS,
    ),
    Fault(
        "a later chunk gets a medium's first rows",
        "runtime/execution/media_rows.py",
        "rows[low - part.start : high - part.start]",
        "rows[: high - low]",
        PARTS,
    ),
    Fault(
        "numbers that are not finite are let pass",
        "runtime/interface/input_embeds.py",
        "(np.abs(numbers) <= spec.largest)",
        "(~(np.abs(numbers) > spec.largest))",
        ("tests/runtime/interface/test_input_embeds.py",),
    ),
    Fault(
        "the rows of ended requests stay on the disk",
        "runtime/front/payloads.py",
        "        self.path.unlink(missing_ok=True)",
        "        self.path.exists()",
        ("tests/runtime/front/test_payloads.py",),
    ),
    # Mixtures of experts
    Fault(
        "the shared expert is left out",
        "model/moe.py",
        "out += self.shared(x, *shared",
        "out += 0 * self.shared(x, *shared",
        EXPERTS,
    ),
    Fault("the routed scaling is left out", "model/moe.py", "weights *= spec.scale", "weights *= 1.0", EXPERTS),
    Fault(
        "experts are weighted by the scores with the bias",
        "model/moe.py",
        "if choice is not scores:",
        "if choice is scores:",
        EXPERTS,
    ),
    # The loader
    Fault(
        "keys and values change places",
        _TRANSFORMS,
        'slot = layout.group if kind == "key"',
        'slot = layout.group if kind == "value"',
        LOADER,
    ),
    Fault("gate and up change places", _TRANSFORMS, '("gate", "up").index', '("up", "gate").index', LOADER),
    Fault("unexpected tensors are let pass", _PLAN, "if unexpected:", "if unexpected and missing:", LOADER),
    Fault(
        "the last, partial block of a float8 scale is not asked for",
        "model/formats/fp8.py",
        "[(*lead, -(-num_rows // block[0]), -(-num_columns // block[1]))]",
        "[(*lead, num_rows // block[0], num_columns // block[1])]",
        LOADER,
    ),
    Fault("holes in a parameter are let pass", _PLAN, "if not known[kind]:", "if not kind:", LOADER),
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
        "            out *= of_rows.reshape(-1, *ones)\n",
        "",
        ("tests/model/weights/test_weights_as_values.py",),
    ),
    Fault(
        "a tensor of the wrong number of bytes is read",
        _FILE,
        ".itemsize != stop - start",
        ".itemsize < stop - start",
        LOADER,
    ),
)
