"""Faults of columns: tokens that are taken or told without a look."""

from tests.faults.fault import Fault

_COLUMNS = "runtime/scheduling/state/slot_columns.py"
_BUILDER = "runtime/execution/batch/batch_builder.py"
BUILT, ROWS = (
    ("tests/runtime/execution/batch/test_batch_builder.py",),
    ("tests/runtime/scheduling/batch/test_step_rows.py",),
)
LATE, _HEADROOM = ("tests/runtime/scheduling/state/test_late_columns.py",), "runtime/scheduling/state/page_headroom.py"
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
        "self.slots is batch.decodes.slots",
        "np.array_equal(self.slots, batch.decodes.slots)",
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
        "runtime/scheduling/batch/step_rows.py",
        "before.slots is slots and before.num_changes == columns.num_changes",
        "before.slots is slots",
        ROWS,
    ),
    Fault(
        "a step has no masks though a grammar goes on",
        "runtime/scheduling/batch/step_rows.py",
        "is_same and not before.is_constrained and not has_drafts",
        "is_same and not has_drafts",
        ROWS,
    ),
    Fault(
        "steps of several tokens use up room for one",
        _COLUMNS,
        "        self._num_roomy_steps, self._headroom = 0, None\n        self.unread",
        "        self._num_roomy_steps -= 1\n        self.unread",
        ROWS,
    ),
    Fault(
        "pages that are given up count as room",
        _COLUMNS,
        "        self.num_changes += count < int(self.free_until[slot])\n",
        "",
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
        "a request that nobody looks at goes on behind its end",
        _HEADROOM,
        "        self.left -= self.num_steps\n",
        "",
        LATE,
    ),
    Fault(
        "of several steps that columns lack they get the tokens of one",
        _COLUMNS,
        "            self._known += count * ones\n",
        "            self._known += ones\n",
        LATE,
    ),
    Fault(
        "the last cached pages are given up for tokens to come",
        "runtime/scheduling/cache/cache_manager.py",
        "_SPARE * count <= self",
        "count <= self",
        LATE,
    ),
    Fault(
        "plain tokens come before all other outputs of their message",
        "runtime/front/requests/request_table.py",
        "self._process(message.outputs[begin : plain.place], stopped)\n            begin = plain.place",
        "self._process(message.outputs[begin:begin], stopped)",
        TABLE,
    ),
)
