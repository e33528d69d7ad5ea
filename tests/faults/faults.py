"""Faults that the tests have to find: each a small change of one file that reads like a slip of the hand.

`make faults` puts them in one at a time. A test that is taken out of the default tier was not needed if all are found.
"""

from tests.faults.device_faults import DEVICE_FAULTS
from tests.faults.docs_faults import DOCS_FAULTS
from tests.faults.fault import Fault
from tests.faults.feature_faults import FEATURE_FAULTS
from tests.faults.model_faults import MODEL_FAULTS
from tests.faults.start_faults import START_FAULTS
from tests.faults.trial_faults import TRIAL_FAULTS

_SCHEDULING, _CORE = "tests/runtime/scheduling/", "tests/runtime/core/"
QUEUE = (_SCHEDULING + "policy/test_waiting_queue.py",)
PREEMPTION = (_SCHEDULING + "test_preemption.py",)
RATIO = (_SCHEDULING + "policy/test_new_token_ratio.py",)
TREE = (_SCHEDULING + "cache/test_radix_cache.py", _SCHEDULING + "cache/test_radix_cache_model.py")
SCHEDULING = (
    *(_SCHEDULING + name for name in ("test_scheduler.py", "test_preemption.py", "test_scheduler_interleavings.py")),
    _CORE + "test_engine_scheduling.py",
)
CACHE = (
    *(_SCHEDULING + name for name in ("test_scheduler.py", "test_scheduler_interleavings.py")),
    _CORE + "test_prefix_cache.py",
)
WINDOWS = (_SCHEDULING + "state/test_window_pages.py", _SCHEDULING + "test_scheduler_interleavings.py")
SAMPLER = (
    *(f"tests/runtime/execution/sampling/{name}.py" for name in ("test_sampler", "test_sampler_history")),
    *("tests/runtime/execution", _CORE + "test_engine_core.py"),
)
DRAFTS = ("tests/runtime/execution/steps/test_verification.py", _CORE + "test_drafts.py")
GRAMMAR = ("tests/runtime/grammar/test_constraint.py", "tests/runtime/grammar/test_limits.py", "tests/runtime/grammar")
JUMPS = (_SCHEDULING + "test_scheduler.py", _CORE + "test_constrained_requests.py")
_PLANNER, _ROOM = "runtime/scheduling/step_planner.py", "runtime/scheduling/"
_MANAGER, _TREE = "runtime/scheduling/cache/cache_manager.py", "runtime/scheduling/cache/radix_cache.py"
_WINDOWS, _NODE = "runtime/scheduling/cache/tree_windows.py", "runtime/scheduling/state/radix_node.py"
_SAMPLER, _CONSTRAINT = "runtime/execution/sampling/sampler.py", "runtime/grammar/constraint.py"
_VERIFICATION = "runtime/execution/steps/verification.py"

FAULTS = (
    # The scheduler
    Fault(
        "the oldest request is never due",
        _ROOM + "policy/waiting_queue.py",
        "% FAIR_TURN == FAIR_TURN - 1",
        "% FAIR_TURN == FAIR_TURN",
        QUEUE,
    ),
    Fault(
        "retraction takes the oldest of equals",
        _ROOM + "policy/retractor.py",
        "-lost, request.given.received",
        "-lost, -request.given.received",
        PREEMPTION,
    ),
    Fault(
        "the new-token ratio sinks below its least",
        _ROOM + "policy/kv_budget.py",
        "max(self.value - self._decay, self._lowest)",
        "self.value - self._decay",
        RATIO,
    ),
    Fault(
        "long prompts stop running streams",
        _PLANNER,
        "self.prefilled_last = True",
        "self.prefilled_last = False",
        SCHEDULING,
    ),
    Fault(
        "deadlines are noticed a minute late",
        _ROOM + "policy/deadlines.py",
        "self._heap[0][0] <= now",
        "self._heap[0][0] <= now - 60",
        SCHEDULING,
    ),
    Fault(
        "priorities within the threshold preempt",
        _ROOM + "policy/retractor.py",
        "self._urgency(victim) > self._threshold",
        "self._urgency(victim) >= self._threshold",
        PREEMPTION,
    ),
    Fault(
        "decoding rows are not counted in a mixed step",
        _PLANNER,
        "budget = self.max_step_tokens - num_decoding",
        "budget = self.max_step_tokens",
        SCHEDULING,
    ),
    Fault(
        "those admitted in a step reserve nothing",
        _PLANNER,
        "reserved += self._kv_budget.expected_tokens(request)",
        "reserved += 0",
        SCHEDULING,
    ),
    Fault(
        "the queue takes one request too many",
        _ROOM + "policy/waiting_queue.py",
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
    Fault("an unlocked node stays unevictable", _TREE, "        self._leaves.offer(node)\n", "        pass\n", TREE),
    Fault("lfu evicts as lru", _NODE, "return leaf.num_hits\n", "return 0\n", TREE),
    Fault("a split forgets who holds the node", _NODE, "lock_count=self.lock_count,", "lock_count=0,", TREE),
    Fault(
        "the block table keeps a page that was given up",
        _MANAGER,
        "self._table_updates.append((request.slot, column, page))\n",
        "pass\n",
        CACHE,
    ),
    # Steps that give a number of tokens that only the device knows
    Fault(
        "one draft too many is accepted",
        _VERIFICATION,
        "is_right = (number < num_drafts)",
        "is_right = (number <= num_drafts)",
        DRAFTS,
    ),
    Fault(
        "a draft that is wrong is accepted",
        _VERIFICATION,
        "(sampler, active & is_right, count + active)",
        "(sampler, active, count + active)",
        DRAFTS,
    ),
    Fault("drafts reach past the table's end", _VERIFICATION, "jnp.minimum(count, ends - 1 - last)", "count", DRAFTS),
    Fault(
        "drafts are looked for in the oldest pages",
        _VERIFICATION,
        "column = jnp.maximum(last // page_size + 1 - num_searched, 0)",
        "column = jnp.zeros_like(last)",
        DRAFTS,
    ),
    Fault(
        "a row at its end is not sent to the scratch page",
        "runtime/execution/steps/step_functions.py",
        "owners = jnp.where(starts < ends, slots, 0)",
        "owners = slots",
        DRAFTS,
    ),
    Fault(
        "window pages are given back by the upper bound of what is computed",
        _MANAGER,
        "held.group.first_needed(request.num_computed)",
        "held.group.first_needed(request.most_computed)",
        WINDOWS,
    ),
    Fault(
        "pages for a token are reserved by the lower bound",
        _ROOM + "state/slot_columns.py",
        "            room -= self.uncertain[slots]\n",
        "            pass\n",
        SCHEDULING,
    ),
    Fault(
        "pages for drafts are reserved by the lower bound",
        _ROOM + "policy/drafts.py",
        "np.minimum(computed + columns.uncertain[slots], most)",
        "np.minimum(computed, most)",
        SCHEDULING,
    ),
    Fault(
        "reading a step corrects no bound",
        _ROOM + "batch/scheduled_batch.py",
        "        if self.has_drafts and counts is not None:",
        "        if self.has_drafts and counts is None:",
        SCHEDULING,
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
        _PLANNER,
        "        request.note_computed(start + count)\n        self._cache.share(request)\n",
        "        request.note_computed(start + count)\n        self._cache.share(request)\n"
        "        self._cache.slide([request])\n",
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
        "jnp.ones_like(image), top_k, lowest",
        "jnp.ones_like(image), top_k + 1, lowest",
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
        "runtime/execution/sampling/draws.py",
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
        "                _forbid(row, self._eos_ids)\n",
        "                pass\n",
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
        "names of properties are not kept to",
        "runtime/text/schemas/schema_emulation.py",
        'return closed | {"patternProperties": {with_written_classes(pattern): value}}',
        "return rest",
        ("tests/runtime/grammar/test_schema_corpus.py",),
    ),
    Fault(
        "an unread field of a message is not told of",
        "http/wire/protocol.py",
        "                self._warnings.warn(error)",
        "                pass",
        ("tests/http/wire/test_unread_fields.py",),
    ),
    Fault(
        "forced text goes beyond max_tokens",
        _ROOM + "state/new_tokens.py",
        "constraint.forced[: request.max_tokens - request.num_output_tokens]",
        "constraint.forced[:]",
        JUMPS,
    ),
    # Kernels
    Fault(
        "rows that nobody wrote are returned",
        "pallas_kernels/ragged_paged_attention/tpu/tpu_rows.py",
        "rest, queries = self.target.shape[2] - first, self.sizes.queries",
        "rest, queries = jnp.int32(0), self.sizes.queries",
        ("tests/pallas_kernels/test_attention_tpu.py",),
    ),
    Fault(
        "hrrn takes the newest request as one that has waited",
        _ROOM + "policy/waiting_queue.py",
        "self._taken_before[request] = self._num_tokens_taken",
        "self._taken_before[request] = 0",
        QUEUE,
    ),
    Fault(
        "slru counts a hit more than once",
        _NODE,
        "return min(leaf.num_hits, 1)",
        "return leaf.num_hits",
        (_SCHEDULING + "cache/test_radix_cache.py",),
    ),
    Fault(
        "a thought may hold the marks of a tool call",
        _CONSTRAINT,
        "_forbid_others(row, self._thinking.forbidden_ids)",
        "_forbid_others(row, ())",
        GRAMMAR,
    ),
    *DEVICE_FAULTS,
    *DOCS_FAULTS,
    *MODEL_FAULTS,
    *FEATURE_FAULTS,
    *START_FAULTS,
    *TRIAL_FAULTS,
)
