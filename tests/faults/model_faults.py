"""Faults of models, their weights and what prompts hold; see `faults`."""

from tests.faults.block_faults import BLOCK_FAULTS
from tests.faults.column_faults import COLUMN_FAULTS
from tests.faults.encoder_faults import ENCODER_FAULTS
from tests.faults.family_faults import FAMILY_FAULTS
from tests.faults.fault import Fault
from tests.faults.latent_faults import LATENT_FAULTS
from tests.faults.snapshot_faults import SNAPSHOT_FAULTS
from tests.faults.weight_faults import WEIGHT_FAULTS

_SCHEDULING, _CORE = "tests/runtime/scheduling/", "tests/runtime/core/"
PARTS = (_SCHEDULING + "state/test_prompt_parts.py", _CORE + "test_input_embeds.py")
LOADER = (
    "tests/model/loading/test_weights.py",
    "tests/model/loading/layout/test_coverage.py",
    "tests/model/test_against_transformers.py",
)
EXPERTS = ("tests/model/layers/test_experts.py", "tests/model/test_against_transformers.py")
_PLANNER, _ROOM = "runtime/scheduling/step_planner.py", "runtime/scheduling/"
_MANAGER, _TREE = "runtime/scheduling/cache/cache_manager.py", "runtime/scheduling/cache/radix_cache.py"
FORMATS = ("tests/model/loading/test_formats.py",)
_LOADING = "model/loading/"
_PLAN, _TRANSFORMS, _FILE = (
    _LOADING + name for name in ("stored_weights.py", "layout/weight_transforms.py", "readers/safetensors_file.py")
)

DELTA, STATES = ("tests/pallas_kernels/test_gated_delta.py",), (_CORE + "test_states.py",)
GPT_OSS, HARMONY = ("tests/model/families/test_gpt_oss.py",), ("tests/http/chat/test_harmony.py",)
CLASSES = ("tests/runtime/core/test_classifier_engine.py",)
PAIRS = ("tests/http/routes/test_scores.py",)

EIGHT_BIT_FAULTS = (
    Fault(
        "a converted table has a chunk for each row",
        "model/loading/orbax_weights.py",
        "max(_LEAST_CHUNK_BYTES, size // _USUAL_CHUNKS)), ()",
        "max(_LEAST_CHUNK_BYTES, size // _USUAL_CHUNKS)), shared",
        ("tests/model/loading/test_orbax_weights.py",),
    ),
    Fault(
        "a short request that shares a turn sees a key behind its own",
        "pallas_kernels/ragged_paged_attention/tpu/tpu_short.py",
        "lax.broadcasted_iota(jnp.int32, shape, 1) < num_keys",
        "lax.broadcasted_iota(jnp.int32, shape, 1) <= num_keys",
        ("tests/pallas_kernels/test_attention_tpu.py",),
    ),
    Fault(
        "the TPU kernel multiplies values with the scales of keys",
        "pallas_kernels/ragged_paged_attention/tpu/tpu_scales.py",
        "self._row(self.num_heads + head,",
        "self._row(head,",
        ("tests/pallas_kernels/test_attention_tpu.py",),
    ),
    Fault(
        "the GPU kernel multiplies values with the scales of keys",
        "pallas_kernels/ragged_paged_attention/gpu/triton_tile.py",
        "(self.head, self.num_kv_heads + self.head)",
        "(self.head, self.head)",
        ("tests/pallas_kernels/test_attention_gpu_triton.py",),
    ),
    Fault(
        "scales of int8 are written beside another token",
        "pallas_kernels/kv_cache_update/xla.py",
        "lanes + writes.page_offsets[:, None]",
        "lanes + 0 * writes.page_offsets[:, None]",
        ("tests/pallas_kernels/test_scale_update.py",),
    ),
    Fault(
        "each part of a GPU's product begins with the first inputs",
        "pallas_kernels/grouped_matmul/gpu_triton.py",
        "first_step = part * jnp",
        "first_step = 0 * jnp",
        ("tests/pallas_kernels/test_grouped_matmul.py",),
    ),
    Fault(
        "a self-check compares int8 without its scales",
        "model/cache/paged_cache.py",
        "astype(jnp.float32) * jnp.repeat(scales, W // 2, axis=-1)",
        "astype(jnp.float32) + 0 * jnp.repeat(scales, W // 2, axis=-1)",
        ("tests/runtime/core/test_cache_of_8_bits.py",),
    ),
)

MODEL_FAULTS = (
    *EIGHT_BIT_FAULTS,
    # Parts of prompts
    Fault(
        "the media's digest is left out of the key",
        _ROOM + "state/radix_node.py",
        "(p.digest, p.is",
        '("", p.is',
        PARTS,
    ),
    Fault(
        "a chunk divides what one step has to compute",
        _PLANNER,
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
        "runtime/execution/batch/media_rows.py",
        "rows[low - part.start : high - part.start]",
        "rows[: high - low]",
        PARTS,
    ),
    Fault(
        "numbers that are not finite are let pass",
        "runtime/interface/request/input_embeds.py",
        "(np.abs(numbers) <= spec.largest)",
        "(~(np.abs(numbers) > spec.largest))",
        ("tests/runtime/interface/request/test_input_embeds.py",),
    ),
    Fault(
        "the rows of ended requests stay on the disk",
        "runtime/front/requests/payloads.py",
        "        self.path.unlink(missing_ok=True)",
        "        self.path.exists()",
        ("tests/runtime/front/requests/test_payloads.py",),
    ),
    # Mixtures of experts
    Fault(
        "the shared expert is left out",
        "model/layers/moe.py",
        "out += self.shared(x, *shared",
        "out += 0 * self.shared(x, *shared",
        EXPERTS,
    ),
    Fault(
        "the routed scaling is left out",
        "pallas_kernels/expert_routing/routing.py",
        "weights *= routing.scale",
        "weights *= 1.0",
        EXPERTS,
    ),
    Fault(
        "experts are weighted by the scores with the bias",
        "pallas_kernels/expert_routing/routing.py",
        "if choice is not scores:",
        "if choice is scores:",
        EXPERTS,
    ),
    Fault(
        "a TPU's kernel weights experts by the scores with the bias",
        "pallas_kernels/expert_routing/tpu.py",
        "shares.append(jnp.sum(jnp.where(is_best, scores, 0.0), axis=0, keepdims=True))",
        "shares.append(best)",
        ("tests/pallas_kernels/test_expert_routing.py",),
    ),
    Fault(
        "a GPU's kernel takes a group's best expert for its two best",
        "pallas_kernels/expert_routing/gpu_triton.py",
        "if groups.best_two:",
        "if False:",
        ("tests/pallas_kernels/test_expert_routing_gpu.py",),
    ),
    # gpt-oss
    Fault(
        "the sink is left out of the denominator",
        "pallas_kernels/ragged_paged_attention/xla.py",
        "jnp.broadcast_to(sinks, rows), jnp.ones(rows)",
        "jnp.broadcast_to(sinks, rows), jnp.zeros(rows)",
        ("tests/model/test_against_transformers.py",),
    ),
    Fault(
        "sinks of padded heads are those of others",
        _TRANSFORMS,
        "Box((place.num_queries,), (number * layout.group,), (place.first_query,))",
        "Box((place.num_queries,), (number * place.num_queries,), (place.first_query,))",
        GPT_OSS,
    ),
    Fault(
        "gate and up are not taken apart",
        _TRANSFORMS,
        "(E, F, 2, D), (0, 2, 1), boxes, (slice(None), slice(None), which)",
        "(E, 2, F, D), (0, 2, 1), boxes, (slice(None), which)",
        GPT_OSS,
    ),
    Fault(
        "every device of several adds the experts' bias",
        "model/layers/moe.py",
        "jnp.where(lax.axis_index(TENSOR_AXIS) == 0, biases[2], 0)",
        "biases[2]",
        FORMATS,
    ),
    Fault(
        "the router's bias is left out of its logits",
        "model/layers/moe.py",
        "return logits + bias",
        "return logits",
        GPT_OSS,
    ),
    Fault(
        "one is not added to an expert's up",
        "model/layers/moe.py",
        "jnp.clip(up, -activation.limit, activation.limit) + 1",
        "jnp.clip(up, -activation.limit, activation.limit)",
        ("tests/model/test_against_transformers.py",),
    ),
    Fault(
        "the largest number of four bits is 5",
        "pallas_kernels/grouped_matmul/scales.py",
        "jnp.clip(step, -6, 6)).astype",
        "jnp.clip(step, -7, 7)).astype",
        ("tests/pallas_kernels/test_grouped_matmul.py",),
    ),
    Fault(
        "every unit of a step takes the scales of the first",
        "pallas_kernels/grouped_matmul/tpu_scaled.py",
        "number = step * per_step + index",
        "number = step * per_step",
        ("tests/pallas_kernels/test_grouped_matmul.py",),
    ),
    Fault(
        "a tile has room for a usual group only",
        "pallas_kernels/grouped_matmul/tpu_scaled.py",
        "2 * math.isqrt(usual) if num_groups > 1 else 0",
        "0 * math.isqrt(usual) if num_groups > 1 else 0",
        ("tests/pallas_kernels/test_grouped_matmul.py",),
    ),
    Fault(
        "what lies behind a matrix is multiplied, and 0 times NaN is NaN",
        "pallas_kernels/grouped_matmul/tpu_scaled.py",
        "jnp.where(row < size, wide, 0.0)",
        "wide",
        ("tests/pallas_kernels/test_grouped_matmul.py",),
    ),
    Fault(
        "programs are not told how weights lie",
        "runtime/execution/compiled/program_set.py",
        "sharding=x.format if has_layout else x.sharding",
        "sharding=x.sharding",
        ("tests/model/loading/test_placement.py",),
    ),
    Fault(
        "a call does not end gpt-oss's answer",
        "runtime/text/tokenizers/tokenizer.py",
        '_HARMONY_ENDS = ("<|return|>", "<|call|>")',
        '_HARMONY_ENDS = ("<|return|>",)',
        HARMONY,
    ),
    Fault(
        "gpt-oss's prompt repeats the reasoning of former turns",
        "http/prompts/templates/gpt-oss.jinja",
        "loop.index0 > state.last_answer",
        "loop.index0 >= 0",
        HARMONY,
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
        "a tensor of the wrong number of bytes is read",
        _FILE,
        ".itemsize != stop - start",
        ".itemsize < stop - start",
        LOADER,
    ),
    # Scores and classes
    Fault(
        "the bias of a head that classifies is dropped",
        "model/layers/linear.py",
        "found if self.bias is None else found + self.bias[...].astype(jnp.float32)",
        "found",
        CLASSES,
    ),
    Fault(
        "the last token but one is pooled",
        "model/pooling/pool.py",
        "parts.append(_rows(vectors_of_tokens, rows.ends - 1))",
        "parts.append(_rows(vectors_of_tokens, rows.ends - 2))",
        CLASSES,
    ),
    Fault(
        "a judge's yes and no change places",
        "model/decoder.py",
        "logits[:, 1:] - logits[:, :1]",
        "logits[:, :1] - logits[:, 1:]",
        CLASSES,
    ),
    Fault(
        "padding at a text's end counts",
        "runtime/front/requests/intake.py",
        "embedding.classes.without_padding(prompt_ids)",
        "prompt_ids",
        CLASSES,
    ),
    Fault(
        "the worst documents come first",
        "http/routes/routes_scores.py",
        "key=lambda index: -found.scores[index]",
        "key=lambda index: found.scores[index]",
        PAIRS,
    ),
    Fault(
        "a document that is too long loses its beginning",
        "http/generation/scored_pairs.py",
        "Truncation(room, keeps_end=False)",
        "Truncation(room, keeps_end=True)",
        PAIRS,
    ),
    Fault(
        "a query and its document are tokenized as one text",
        "runtime/interface/request/embedding.py",
        'else "joined" if self.joins else "paired"',
        'else "joined" if self.joins else "joined"',
        PAIRS,
    ),
    Fault(
        "scores of tokens add up to 1 where they should not",
        "runtime/front/requests/token_scores.py",
        "if not apply_softmax:",
        "if apply_softmax:",
        PAIRS,
    ),
    # Layers that keep states
    Fault(
        "a padding row advances a state",
        "pallas_kernels/gated_delta/api.py",
        "states.at[jnp.where(slots == SCRATCH_SLOT, nowhere, slots)]",
        "states.at[jnp.where(slots == nowhere, nowhere, slots)]",
        DELTA,
    ),
    Fault(
        "tokens behind a row advance its state",
        "pallas_kernels/gated_delta/recurrence.py",
        "jnp.moveaxis(jnp.where(is_real, array, 0.0), 1, -1)",
        "jnp.moveaxis(jnp.where(True, array, 0.0), 1, -1)",
        DELTA,
    ),
    Fault(
        "a slot is not cleared for the next request",
        "pallas_kernels/gated_delta/api.py",
        "kv_len <= counts, num_decodes",
        "kv_len < counts, num_decodes",
        STATES,
    ),
    Fault(
        "a layer with a state goes by the second block table",
        "model/cache/groups.py",
        "Place(self.num_tables, self.num_arrays + n)",
        "Place(1, self.num_arrays + n)",
        STATES,
    ),
    *BLOCK_FAULTS,
    *WEIGHT_FAULTS,
    *LATENT_FAULTS,
    *COLUMN_FAULTS,
    *SNAPSHOT_FAULTS,
    *ENCODER_FAULTS,
    *FAMILY_FAULTS,
)
