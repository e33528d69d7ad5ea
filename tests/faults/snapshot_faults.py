"""Faults of snapshots: what is copied when, who finds it, and when it goes."""

from tests.faults.fault import Fault

_ROOM = "runtime/scheduling/"
_COPIES, _TREE = _ROOM + "cache/state_snapshots.py", _ROOM + "cache/radix_cache.py"
SNAPSHOTS = (_ROOM.replace("runtime", "tests/runtime") + "cache/test_snapshots.py",)
ENGINE, SIZES = ("tests/runtime/core/test_states.py",), ("tests/runtime/core/plan/test_state_sizing.py",)

SNAPSHOT_FAULTS: tuple[Fault, ...] = (
    Fault(
        "a request begins behind cached pages without a snapshot",
        _TREE,
        "found = self.snapshots.usable(path)\n",
        "found = path\n",
        SNAPSHOTS,
    ),
    Fault(
        "a match ends at a snapshot whose window is gone",
        _TREE,
        "(seen := self.windows.usable(found)) != found",
        "(seen := found) != found",
        SNAPSHOTS,
    ),
    Fault(
        "a snapshot is kept after its node went",
        _TREE,
        "            self.snapshots.drop(leaf)\n",
        "            self.snapshots.slots\n",
        SNAPSHOTS,
    ),
    Fault(
        "pages are added to a node with a snapshot",
        _TREE,
        "if is_own and not node.snapshot and node.rank == rank:",
        "if is_own:",
        SNAPSHOTS,
    ),
    Fault(
        "a snapshot is published whose step has not run",
        _COPIES,
        "            self._drop(copy)\n        if held.along",
        "            self._keep(copy)\n        if held.along",
        SNAPSHOTS,
    ),
    Fault(
        "what goes along with a request is kept before its step has run",
        _COPIES,
        "return copy.is_confirmed and copy.num_pages",
        "return copy.num_pages",
        SNAPSHOTS,
    ),
    Fault(
        "a state of tokens behind a stop token is kept",
        _COPIES,
        "return copy.is_confirmed and copy.num_pages * self._page_size <= len(copy.request.token_ids)",
        "return copy.is_confirmed",
        SNAPSHOTS,
    ),
    Fault(
        "another slot's state is copied",
        _COPIES,
        "SnapshotCopy(row.request, row.request.slot, slot,",
        "SnapshotCopy(row.request, row.request.slot % 2 + 1, slot,",
        (_ROOM.replace("runtime", "tests/runtime") + "test_scheduler_interleavings.py",),
    ),
    Fault(
        "a snapshot is copied to another request's slot",
        _COPIES,
        "self._restores.append((node.snapshot, request.slot))",
        "self._restores.append((node.snapshot, request.slot % 2 + 1))",
        SNAPSHOTS,
    ),
    Fault(
        "requests that decode take all slots",
        _COPIES,
        "self._num_along >= self._slots.slots.count // MOST_ALONG",
        "self._num_along >= self._slots.slots.count",
        SNAPSHOTS,
    ),
    Fault(
        "the snapshot that was used last is evicted",
        _ROOM + "cache/tree_snapshots.py",
        "self.drop(next(iter(self._nodes)))",
        "self.drop(next(reversed(self._nodes)))",
        SNAPSHOTS,
    ),
    Fault(
        "a chunk goes past the place of a snapshot",
        _ROOM + "step_planner.py",
        "count = self._cache.snapshots.stop(request, start, start + count) - start",
        "count = max(count, self._cache.snapshots.stop(request, start, start + count) - start)",
        SNAPSHOTS,
    ),
    Fault(
        "a request computes two chunks of its prompt in a step",
        _ROOM + "step_planner.py",
        " if r is not first]",
        "]",
        SNAPSHOTS,
    ),
    Fault(
        "a retraction's loss counts all tokens",
        _ROOM + "cache/cache_manager.py",
        "return request.num_computed - behind",
        "return request.num_computed",
        SNAPSHOTS,
    ),
    Fault(
        "states are copied the wrong way round",
        "runtime/execution/programs/cache_programs.py",
        "copy_states(cache.states(kv_cache), *slots)",
        "copy_states(cache.states(kv_cache), *slots[::-1])",
        ENGINE,
    ),
    Fault(
        "a snapshot is published that nothing was copied to",
        "runtime/execution/model_runner.py",
        """            self._copy_states(step, "after")
""",
        "",
        ENGINE,
    ),
    Fault(
        "each rank copies what the last one does",
        "runtime/execution/model_runner.py",
        "slots[rank, :, : len(pairs[:size])] =",
        "slots[:, :, : len(pairs[:size])] =",
        ENGINE,
    ),
    Fault(
        "the self-check does not look at states",
        "runtime/execution/programs/cache_programs.py",
        "if slots is not None:",
        "if slots is None:",
        ENGINE,
    ),
    Fault(
        "an explanation does not tell how far a snapshot reached",
        "runtime/scheduling/cache/state_snapshots.py",
        "SnapshotHit(time.time(), node.snapshot, request.num_computed)",
        "SnapshotHit(time.time(), node.snapshot, 0)",
        ENGINE,
    ),
    Fault(
        "snapshots take a little more than they may",
        "runtime/core/plan/state_sizing.py",
        "return given // one\n",
        "return -(-given // one)\n",
        SIZES,
    ),
    Fault(
        "the states of all requests take what pages need",
        "runtime/core/plan/state_sizing.py",
        "if fitting < limits.max_running:",
        "if fitting > limits.max_running:",
        SIZES,
    ),
)
