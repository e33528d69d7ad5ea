"""Faults that the tests have to find: each a small change of one file that reads like a slip of the hand.

`make faults` puts them in one at a time. A test that is taken out of the default tier was not needed if all are found.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Fault:
    """
    Attributes:
        name: what goes wrong.
        file: path in the repository.
        old: text that the file has once.
        new: what stands there instead.
        tests: where it ought to be found.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


_SCHEDULING, _CORE = "tests/runtime/scheduling/", "tests/runtime/core/"
QUEUE = (_SCHEDULING + "test_waiting_queue.py",)
PREEMPTION = (_SCHEDULING + "test_preemption.py",)
RATIO = (_SCHEDULING + "test_new_token_ratio.py",)
TREE = (_SCHEDULING + "test_radix_cache.py", _SCHEDULING + "test_radix_cache_model.py")
SCHEDULING = (
    *(_SCHEDULING + name for name in ("test_scheduler.py", "test_preemption.py", "test_scheduler_interleavings.py")),
    _CORE + "test_engine_scheduling.py",
)
CACHE = (
    *(_SCHEDULING + name for name in ("test_scheduler.py", "test_scheduler_interleavings.py")),
    _CORE + "test_prefix_cache.py",
)
PARTS = (_SCHEDULING + "test_prompt_parts.py", _CORE + "test_input_embeds.py")
WINDOWS = (_SCHEDULING + "test_window_pages.py", _SCHEDULING + "test_scheduler_interleavings.py")
SAMPLER = (
    *(f"tests/runtime/execution/{name}.py" for name in ("test_sampler", "test_sampler_history")),
    *("tests/runtime/execution", _CORE + "test_engine_core.py"),
)
GRAMMAR = ("tests/runtime/grammar/test_constraint.py", "tests/runtime/grammar/test_limits.py", "tests/runtime/grammar")
JUMPS = (_SCHEDULING + "test_scheduler.py", _CORE + "test_constrained_requests.py")
LOADER = (
    "tests/model/loading/test_weights.py",
    "tests/model/loading/test_coverage.py",
    "tests/model/test_against_transformers.py",
)

EXPERTS = ("tests/model/test_experts.py", "tests/model/test_against_transformers.py")

_SCHEDULER, _ROOM = "runtime/scheduling/scheduler.py", "runtime/scheduling/"
_MANAGER, _TREE = "runtime/scheduling/cache_manager.py", "runtime/scheduling/radix_cache.py"
_WINDOWS = "runtime/scheduling/tree_windows.py"
_SAMPLER, _CONSTRAINT = "runtime/execution/sampler.py", "runtime/grammar/constraint.py"
FORMATS = ("tests/model/loading/test_formats.py",)
_LOADING = "model/loading/"
_PLAN, _TRANSFORMS, _FILE = (
    _LOADING + name for name in ("stored_weights.py", "weight_transforms.py", "safetensors_file.py")
)

FAULTS = (
    # The scheduler
    Fault(
        "no fair turn ever comes",
        _ROOM + "waiting_queue.py",
        "% FAIR_TURN == FAIR_TURN - 1",
        "% FAIR_TURN == FAIR_TURN",
        QUEUE,
    ),
    Fault(
        "retraction takes the oldest of equals",
        _ROOM + "kv_budget.py",
        "-lost, request.given.received",
        "-lost, -request.given.received",
        PREEMPTION,
    ),
    Fault(
        "the new-token ratio sinks below its least",
        _ROOM + "kv_budget.py",
        "max(self.value - self._decay, self._lowest)",
        "self.value - self._decay",
        RATIO,
    ),
    Fault(
        "long prompts stop running streams",
        _SCHEDULER,
        "self.prefilled_last = True",
        "self.prefilled_last = False",
        SCHEDULING,
    ),
    Fault(
        "deadlines are noticed a minute late",
        _ROOM + "waiting_queue.py",
        "self._heap[0][0] <= now",
        "self._heap[0][0] <= now - 60",
        SCHEDULING,
    ),
    Fault(
        "priorities within the threshold preempt",
        _ROOM + "kv_budget.py",
        "self._urgency(victim) > self._threshold",
        "self._urgency(victim) >= self._threshold",
        PREEMPTION,
    ),
    Fault(
        "decoding rows are not counted in a mixed step",
        _SCHEDULER,
        "budget = self.max_step_tokens - num_decoding",
        "budget = self.max_step_tokens",
        SCHEDULING,
    ),
    Fault(
        "those admitted in a step reserve nothing",
        _SCHEDULER,
        "reserved += self.kv_budget.expected_tokens(request)",
        "reserved += 0",
        SCHEDULING,
    ),
    Fault(
        "the queue takes one request too many",
        _ROOM + "waiting_queue.py",
        "self.num_foreground + num_elsewhere >= limit",
        "self.num_foreground + num_elsewhere > limit",
        SCHEDULING,
    ),
    # The cache
    Fault(
        "a wholly cached prompt computes nothing",
        _MANAGER,
        "count = (len(request.token_ids) - 1) // self.page_size if",
        "count = len(request.token_ids) // self.page_size if",
        CACHE,
    ),
    Fault(
        "duplicates are never freed",
        _MANAGER,
        "self.allocator.free(request.duplicates)\n            request.duplicates = []",
        "request.duplicates = []",
        CACHE,
    ),
    Fault(
        "tenants share a cache in spite of their salts",
        _MANAGER,
        "self.tree.match(keys, salt)",
        "self.tree.match(keys, None)",
        CACHE,
    ),
    Fault(
        "an unlocked node stays unevictable", _TREE, "at = at.parent\n        self._offer(node)", "at = at.parent", TREE
    ),
    Fault(
        "lfu evicts as lru",
        _TREE,
        "leaf.num_hits if self._counts_hits else 0",
        "0",
        TREE,
    ),
    Fault("a split forgets who holds the node", _TREE, "lock_count=node.lock_count,", "lock_count=0,", TREE),
    Fault(
        "the block table keeps a page that was given up",
        _MANAGER,
        "self._table_updates.append((request.slot, column, page))\n",
        "pass\n",
        CACHE,
    ),
    # Groups of layers with a window
    Fault(
        "window pages are given back by the upper bound",
        _MANAGER,
        "held.group.first_needed(request.num_computed)",
        "held.group.first_needed(len(request.pages) * self.page_size)",
        WINDOWS,
    ),
    Fault(
        "window pages are given back before the step is final",
        _SCHEDULER,
        "        request.num_computed += count\n        self.cache.share(request)\n",
        "        request.num_computed += count\n        self.cache.share(request)\n"
        "        self.cache.slide([request])\n",
        WINDOWS,
    ),
    Fault("a match accepts a hole", _WINDOWS, "if not next(places).ids:", "if next(places) is None:", WINDOWS),
    Fault(
        "a hole is filled, and whose page that was is forgotten",
        _WINDOWS,
        "self.hold([places[i]], now)\n                        given[begin + i] = places[i]",
        "self.hold([places[i]], now)",
        WINDOWS,
    ),
    Fault(
        "a lock holds all pages of a windowed group",
        _WINDOWS,
        "needed = depth - group.first_needed(depth * group.page_size)",
        "needed = depth",
        WINDOWS,
    ),
    Fault(
        "all tables of windowed groups are written to one place",
        _MANAGER,
        "table * self.groups.num_columns + place",
        "place",
        WINDOWS,
    ),
    Fault(
        "the self-check looks at the pages of layers that keep all tokens only",
        "runtime/execution/model_runner.py",
        "enumerate(pairs)",
        "enumerate(pairs[:1])",
        (_CORE + "test_windows.py",),
    ),
    # The sampler
    Fault(
        "top_k keeps one more",
        _SAMPLER,
        "jnp.ones_like(image), batch.top_k, lowest",
        "jnp.ones_like(image), batch.top_k + 1, lowest",
        SAMPLER,
    ),
    Fault(
        "min_p is twice as strict",
        _SAMPLER,
        "jnp.log(batch.min_p)[:, None]",
        "jnp.log(2 * batch.min_p)[:, None]",
        SAMPLER,
    ),
    Fault(
        "the presence penalty grows with each occurrence",
        _SAMPLER,
        "jnp.where(seen, batch.presence_penalty[:, None], 0.0)",
        "batch.presence_penalty[:, None] * counts",
        SAMPLER,
    ),
    Fault(
        "the repetition penalty forgets the prompt",
        _SAMPLER,
        "(seen | _rows(state.prompt_mask, slots))",
        "seen",
        SAMPLER,
    ),
    Fault(
        "stop ids are suppressed one token too long",
        _SAMPLER,
        "batch.positions < batch.min_position",
        "batch.positions <= batch.min_position",
        SAMPLER,
    ),
    Fault(
        "a seed's upper half is not used",
        "runtime/execution/gumbel_noise.py",
        "_threefry((seeds[:, 1], seeds[:, 0]),",
        "_threefry((0 * seeds[:, 1], seeds[:, 0]),",
        SAMPLER,
    ),
    Fault(
        "a token is counted once, however often it comes",
        _SAMPLER,
        "state.output_counts.at[batch.slot_ids, token_ids].add(1)",
        "state.output_counts.at[batch.slot_ids, token_ids].set(1)",
        SAMPLER,
    ),
    # Grammars
    Fault(
        "a thinking budget is one token longer",
        _CONSTRAINT,
        "self._num_thought < budget",
        "self._num_thought <= budget",
        GRAMMAR,
    ),
    Fault(
        "thinking may end with the end of the output",
        _CONSTRAINT,
        'elif self._phase == "thinking" and self._matcher is not None:\n            _forbid(row, self._eos_ids)',
        'elif self._phase == "thinking" and self._matcher is not None:\n            pass',
        GRAMMAR,
    ),
    Fault(
        "counts of a pattern are not looked at",
        "runtime/grammar/limits.py",
        "groups[-1][-1] *= max(1, int(count[1][:12]))",
        "groups[-1][-1] *= 1",
        GRAMMAR,
    ),
    Fault(
        "multiples that hold together are judged apart",
        "runtime/grammar/schema_multiples.py",
        "math.lcm(*(one.digits",
        "max((one.digits",
        GRAMMAR,
    ),
    Fault(
        "forced text goes beyond max_tokens",
        _ROOM + "request.py",
        "constraint.forced[: request.max_tokens - request.num_output_tokens]",
        "constraint.forced[:]",
        JUMPS,
    ),
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
