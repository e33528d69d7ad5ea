"""Faults of columns: tokens that are taken or reported without a check."""

from tests.faults.fault import Fault

_COLUMNS = "runtime/scheduling/state/slot_columns.py"
_BUILDER = "runtime/execution/batch/batch_builder.py"
BUILT, ROWS = (
    ("tests/runtime/execution/batch/test_batch_builder.py",),
    ("tests/runtime/scheduling/batch/test_scheduled_batch.py",),
)
STEADY = ("tests/runtime/scheduling/state/test_steady_rows.py",)
REQUEST = ("tests/runtime/scheduling/state/test_request.py",)
TABLE = ("tests/runtime/front/requests/test_request_table.py",)

COLUMN_FAULTS: tuple[Fault, ...] = (
    Fault(
        "a stop token is taken without a look",
        _COLUMNS,
        "            taken &= ~stops.any(axis=(1, 2))\n",
        "            pass\n",
        REQUEST,
    ),
    Fault(
        "a token that means nothing is taken",
        _COLUMNS,
        "            taken[alone] = False\n",
        "            pass\n",
        REQUEST,
    ),
    Fault(
        "columns hold more tokens than they have room for",
        "runtime/scheduling/state/request.py",
        "len(self.listed_ids) + RECENT",
        "len(self.listed_ids) + 2 * RECENT",
        REQUEST,
    ),
    Fault(
        "who loses its slot loses tokens",
        "runtime/scheduling/state/request.py",
        "        known = self.token_ids\n",
        "        known = self.listed_ids\n",
        REQUEST,
    ),
    Fault(
        "a step of the same rows changes the block tables as an earlier one did",
        _BUILDER,
        "        packed[form.layout.sections[_UPDATES]] = 0\n",
        "",
        BUILT,
    ),
    Fault(
        "a request in a slot that is free again is sampled as the one before",
        _BUILDER,
        "self.rows is batch.decodes.steady",
        "np.array_equal(self.rows.slots, batch.decodes.slots)",
        BUILT,
    ),
    Fault(
        "a step overwrites the vectors of the one before",
        _BUILDER,
        "self.form.layout, self.packed.copy()",
        "self.form.layout, self.packed",
        BUILT,
    ),
    Fault(
        "a row is of its request's old revision",
        "runtime/scheduling/state/running.py",
        "self._steady.num_changes != self.columns.num_changes",
        "len(self._steady.slots) != len(self.slots)",
        ROWS,
    ),
    Fault(
        "a step has no masks though a grammar goes on",
        "runtime/scheduling/batch/scheduled_batch.py",
        "len(slots), steady.is_constrained, steady=steady",
        "len(slots), False, steady=steady",
        ROWS,
    ),
    Fault(
        "steps of several tokens use up room for one",
        _COLUMNS,
        "            self.computed[slots] = starts + num_tokens\n",
        "            self.computed[slots] = starts + 1\n",
        ROWS,
    ),
    Fault(
        "pages that are given up count as room",
        _COLUMNS,
        "        self.free_until[slot] = count\n",
        "        self.free_until[slot] = max(count, self.free_until[slot])\n",
        ROWS,
    ),
    Fault(
        "a request that prefills or is complete decodes",
        _COLUMNS,
        "(free > 0) & (self.computed[slots] < most)",
        "(free >= 0) & (self.computed[slots] <= most)",
        ROWS,
    ),
    Fault(
        "tokens of steady rows go out, and their requests do not have them",
        _COLUMNS,
        "        self._read += change\n",
        "        self._read[0] += change[0]\n",
        STEADY,
    ),
    Fault(
        "a step of steady rows ends no request",
        _COLUMNS,
        "num_plain < len(slots) or np.count_nonzero(token_ids == stop_ids)",
        "np.count_nonzero(token_ids == stop_ids)",
        STEADY,
    ),
    Fault(
        "the last cached pages are given up for tokens to come",
        "runtime/scheduling/cache/cache_manager.py",
        "_SPARE * count <= self",
        "count <= self",
        STEADY,
    ),
    Fault(
        "plain tokens come before all other outputs of their message",
        "runtime/front/requests/request_table.py",
        "self._process(message.outputs[begin : plain.place], stopped)\n            begin = plain.place",
        "self._process(message.outputs[begin:begin], stopped)",
        TABLE,
    ),
)
