"""Drafts on the device: where they are written, which are kept, and what is proposed, against plain Python."""

import functools
import itertools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from palladio.runtime.execution.batch.batch_builder import NUM_COLUMNS, ON_DEVICE, SLOT, TEMPERATURE, ForwardLayout
from palladio.runtime.execution.sampling.sampler_state import SamplerState
from palladio.runtime.execution.state.device_state import SlotInputs
from palladio.runtime.execution.state.proposer import KnownTokens, NgramProposer, Proposer
from palladio.runtime.execution.steps.step_functions import unpack_forward
from palladio.runtime.execution.steps.verification import propose_drafts, verify_drafts
from palladio.runtime.scheduling.batch.buckets import PrefillBucket
from tests.properties import examples

SLOTS, COLUMNS, SIZE, VOCAB = 5, 4, 4, 50
LIMIT = COLUMNS * SIZE  # tokens that a block table has room for
MOST = 5  # drafts
LAYOUT = ForwardLayout.prefill(PrefillBucket(32, 4), SIZE, (4,))
TABLES = np.arange(SLOTS * COLUMNS).reshape(SLOTS, COLUMNS)
TABLES[0] = 0  # the scratch slot's


class Fixed(Proposer):
    """So many drafts for everyone."""

    def __init__(self, num_drafts: int) -> None:
        self.num_drafts = num_drafts

    def propose(self, known: KnownTokens) -> tuple[jax.Array, jax.Array]:
        count = known.last.shape[0]
        drafts = jnp.broadcast_to(jnp.arange(30, 30 + self.num_drafts), (count, self.num_drafts))
        return drafts, jnp.full(count, self.num_drafts)


def pack(rows: list[tuple[int, int, int]]) -> np.ndarray:
    """A step's vector of decode rows (slot, end, drafts)."""
    packed = np.zeros(LAYOUT.size, np.int32)
    counts, slots, starts, ends, _, _ = LAYOUT.sections
    packed[counts] = len(rows), 0
    for i, (slot, end, num_drafts) in enumerate(rows):
        packed[slots][i], packed[starts][i], packed[ends][i] = slot, ON_DEVICE - num_drafts, end
    return packed


@functools.partial(jax.jit, static_argnames=("most",))
def forward(packed, lengths, most):
    """The drafts of a step, and its rows."""
    none = jnp.zeros((SLOTS, most), jnp.int32), jnp.zeros(SLOTS, jnp.int32)
    known = jnp.full(SLOTS, 7), lengths, jnp.asarray(TABLES), jnp.zeros((SLOTS * COLUMNS, SIZE), jnp.int32)
    proposer = Fixed(most)
    shape = {"layout": LAYOUT, "num_rows": 4, "num_columns": COLUMNS, "window": None}
    drafts, num_drafts = propose_drafts(none, known, packed, proposer, **shape)
    inputs = SlotInputs(jnp.full(SLOTS, 7), drafts, num_drafts)
    batch, _, after = unpack_forward(packed, jnp.asarray(TABLES), lengths, inputs, LAYOUT, SIZE)
    return num_drafts, batch, after


def check(rows: list[tuple[int, int, int]], lengths: list[int], most: int) -> None:
    """Each token of each row is where it belongs, and none at its row's end or beyond."""
    num_drafts, batch, after = forward(pack(rows), jnp.asarray(lengths), most)
    token, query_start = 0, np.asarray(batch.query_start)
    for i, (slot, end, room) in enumerate(rows):
        assert query_start[i] == token
        length = lengths[slot]
        count = max(0, min(room, end - 1 - length))
        assert num_drafts[slot] == count
        for place in range(1 + count):
            position = length + place if length < end else 0
            page = TABLES[slot, position // SIZE] if length < end else 0
            found = [int(x[token]) for x in (batch.positions, batch.page_ids[0], batch.page_offsets, batch.token_ids)]
            assert found == [position, page, position % SIZE, 29 + place if place else 7]
            token += 1
        assert batch.kv_len[i] == (length + 1 + count if length < end else 1)
        assert after[slot] == (length + 1 if length < end else length), "the first token is certain, no other"
    assert not np.asarray(batch.page_ids[0])[token:].any(), "padding is written to the scratch page"


@pytest.mark.parametrize("room", range(MOST + 1))
def test_every_offset_over_the_ends_of_pages(room: int) -> None:
    """Of a page, and of the block table: where JAX would clamp an index, and hit a page in use."""
    for low in range(0, LIMIT, 4):
        starts = range(low, low + 4)
        check([(1 + i, LIMIT, room) for i in range(4)], [0, *starts], MOST)


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT), st.integers(0, MOST)), min_size=1, max_size=4)
)
@examples(60)
def test_rows_that_end_anywhere(rows: list[tuple[int, int, int]]) -> None:
    """At max_tokens, at the end of the context or of the table; and those that have come there already."""
    lengths = [0, *(length for length, _, _ in rows)]
    check(
        [(1 + i, end, room) for i, (_, end, room) in enumerate(rows)], [*lengths, *([0] * (SLOTS - len(lengths)))], MOST
    )


def test_what_is_kept_is_what_is_sampled() -> None:
    """Hidden states are the ids that a greedy row takes: rows with no, some and all drafts right, and one without."""
    sampled = {1: [9, 10, 11, 12], 2: [20, 21, 30, 31], 3: [40, 1, 2, 3], 4: [5]}
    drafts = {1: [9, 10, 11], 2: [20, 21, 22], 3: [41, 1, 2], 4: [5, 0, 0]}
    kept = {1: 4, 2: 3, 3: 1, 4: 1}
    packed = np.zeros((4, NUM_COLUMNS), np.int32)
    packed[:, SLOT], packed[:, TEMPERATURE] = list(sampled), 0
    hidden = np.zeros(32, np.int32)
    hidden[:13] = list(itertools.chain(*sampled.values()))
    inputs = SlotInputs(
        jnp.zeros(SLOTS, jnp.int32), jnp.asarray([[0] * 3, *drafts.values()]), jnp.asarray([0, 3, 3, 3, 0])
    )
    sampler = SamplerState.allocate(SLOTS, VOCAB)
    sampler, lengths = sampler.with_last_token(inputs.last_token), jnp.asarray([3, 8, 9, 10, 11])
    lengths, sampler, output = verify_drafts(
        lambda ids: jax.nn.one_hot(ids, VOCAB), (lengths, sampler), jnp.asarray(hidden), inputs, packed, "full"
    )
    assert output.counts is not None
    assert output.counts.tolist() == list(kept.values())
    tokens = np.asarray(output.token_ids)
    for i, slot in enumerate(sampled):
        of_row = sampled[slot][: kept[slot]]
        assert tokens[: kept[slot], i].tolist() == of_row
        assert sampler.last_token[slot] == of_row[-1]
        counts = np.bincount(of_row, minlength=VOCAB)
        assert sampler.output_counts[slot].tolist() == counts.tolist(), "penalties count what is kept, once"
    assert lengths[1:].tolist() == [8 + 3, 9 + 2, 10, 11]


def expected_drafts(tokens: list[int], first: int, least: int, most: int, count: int) -> list[int] | None:
    """What followed the longest, and then the latest, earlier place of the newest tokens."""
    last, best = len(tokens) - 1, (0, 0)
    for place in range(first, last):
        agreeing = 0
        while agreeing < most and place - agreeing >= first and tokens[place - agreeing] == tokens[last - agreeing]:
            agreeing += 1
        if agreeing >= least:
            best = max(best, (agreeing, place))
    if not best[0]:
        return None
    known = list(tokens)
    for _ in range(count):
        known.append(known[len(known) - (last - best[1])])
    return known[len(tokens) :]


@hypothesis.given(
    st.lists(st.integers(0, 3), min_size=1, max_size=20), st.integers(0, 5), st.integers(1, 3), st.integers(0, 3)
)
@examples(40)
def test_ngrams_are_those_of_a_search_in_python(tokens: list[int], first: int, least: int, more: int) -> None:
    first = min(first, len(tokens) - 1)
    row = np.full((1, 24), 3, np.int32)
    row[0, : len(tokens)] = tokens
    known = KnownTokens(jnp.asarray(row), jnp.asarray([first]), jnp.asarray([len(tokens) - 1]))
    drafts, count = NgramProposer(4, least, least + more).propose(known)
    expected = expected_drafts(tokens, first, least, least + more, 4)
    assert count[0] == (0 if expected is None else 4)
    if expected is not None:
        assert drafts[0].tolist() == expected


@pytest.mark.parametrize(("most_searched", "num_pages"), [(1, 1), (4 * 2 * SIZE, 2), (10**6, COLUMNS)])
@hypothesis.given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=LIMIT - 1), min_size=4, max_size=4))
@examples(20)
def test_a_step_looks_through_the_newest_pages(most_searched: int, num_pages: int, texts: list[list[int]]) -> None:
    """So many of each row that all of them are not more than a step's share."""
    page_tokens = np.full((SLOTS * COLUMNS, SIZE), 2, np.int32)
    for slot, text in enumerate(texts, 1):
        pages = np.full(LIMIT, 2, np.int32)
        pages[: len(text) - 1] = text[:-1]  # the newest one is not computed yet
        page_tokens[TABLES[slot]] = pages.reshape(COLUMNS, SIZE)
    lengths = jnp.asarray([0, *(len(text) - 1 for text in texts)])
    last_token = jnp.asarray([0, *(text[-1] for text in texts)])
    drafts, num_drafts = search(lengths, last_token, jnp.asarray(page_tokens), most_searched)
    for slot, text in enumerate(texts, 1):
        begin = max(0, (len(text) - 1) // SIZE + 1 - num_pages) * SIZE
        expected = (expected_drafts(text[begin:], 0, 1, 3, MOST) or [])[: LIMIT - len(text)]
        assert drafts[slot, : num_drafts[slot]].tolist() == expected


@functools.partial(jax.jit, static_argnames=("most_searched",))
def search(lengths, last_token, page_tokens, most_searched):
    none = jnp.zeros((SLOTS, MOST), jnp.int32), jnp.zeros(SLOTS, jnp.int32)
    packed = pack([(slot, LIMIT, MOST) for slot in range(1, SLOTS)])
    known = last_token, lengths, jnp.asarray(TABLES), page_tokens
    shape = {"layout": LAYOUT, "num_rows": 4, "num_columns": COLUMNS, "window": None, "most_searched": most_searched}
    return propose_drafts(none, known, packed, NgramProposer(MOST, 1, 3), **shape)
