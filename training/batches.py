"""Training batches: a pure function of the seed and the step, so that a resumed run goes on as the broken one would."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from training.corpus import Pieces, training_sample

SAMPLES_PER_STEP = 44
ROWS = ((1, 384), (7, 192), (15, 128))  # how many of what length; the first are filled first
MAX_LEARNT = 2048  # tokens of a step that are learnt; with these samples there are about 1600
JUMP_SHARE, MAX_JUMP = 0.15, 3500  # in so many samples, positions jump once: distances of long chats, in short rows
Ints = NDArray[np.int32]
Sample = tuple[list[int], list[bool]]
"""Token ids, and which of them the model is to write."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one length, each filled with whole samples. See network.hidden_states."""

    token_ids: Ints
    positions: Ints
    documents: Ints


@dataclass(frozen=True, slots=True)
class Batch:
    """Attributes:
    rows: of each length.
    places: i32[MAX_LEARNT], tokens after which one is learnt: numbers in all rows, one after the other.
    next_ids: i32[MAX_LEARNT], what is learnt there.
    weights: f32[MAX_LEARNT], 0 for padding.
    """

    rows: tuple[Rows, ...]
    places: Ints
    next_ids: Ints
    weights: NDArray[np.float32]


def batch(tokenizer: Tokenizer, seed: int, step: int) -> Batch:
    """The step's rows, the longest samples first; a sample for which no row has room is left out."""
    first = step * SAMPLES_PER_STEP
    samples = [encode(tokenizer, training_sample(seed, first + number)) for number in range(SAMPLES_PER_STEP)]
    samples.sort(key=lambda sample: len(sample[0]), reverse=True)
    lengths = [length for count, length in ROWS for _ in range(count)]
    filled: list[list[Sample]] = [[] for _ in lengths]
    room = list(lengths)
    for sample in samples:
        row = next((row for row, free in enumerate(room) if len(sample[0]) <= free), None)
        if row is not None:
            filled[row].append(sample)
            room[row] -= len(sample[0])
    return _lay_out(filled, np.random.RandomState((seed + step) % 2**32))


def encode(tokenizer: Tokenizer, pieces: Pieces) -> Sample:
    """A sample's tokens: each piece for itself, as a server encodes a prompt and a model goes on."""
    ids: list[int] = []
    learnt: list[bool] = []
    for text, is_learnt in pieces:
        piece = tokenizer.encode(text, add_special_tokens=False).ids
        ids += piece
        learnt += [is_learnt] * len(piece)
    return ids, learnt


def _lay_out(filled: list[list[Sample]], random: np.random.RandomState) -> Batch:
    rows, places, next_ids, begin, first_row = [], [], [], 0, 0
    for count, length in ROWS:
        token_ids, positions, documents = (np.zeros((count, length), np.int32) for _ in range(3))
        for row, samples in enumerate(filled[first_row : first_row + count]):
            start = 0
            for number, (ids, learnt) in enumerate(samples, start=1):
                where = slice(start, start + len(ids))
                token_ids[row, where], positions[row, where], documents[row, where] = (
                    ids,
                    _positions(len(ids), random),
                    number,
                )
                taught = [at for at in range(1, len(ids)) if learnt[at]]  # nothing comes before a sample's first token
                places += [begin + row * length + start + at - 1 for at in taught]
                next_ids += [ids[at] for at in taught]
                start += len(ids)
        rows.append(Rows(token_ids, positions, documents))
        begin, first_row = begin + count * length, first_row + count
    count = min(len(places), MAX_LEARNT)
    padding = [0] * (MAX_LEARNT - count)
    weights = np.arange(MAX_LEARNT) < count
    return Batch(
        tuple(rows),
        np.asarray(places[:count] + padding, np.int32),
        np.asarray(next_ids[:count] + padding, np.int32),
        weights.astype(np.float32),
    )


def _positions(count: int, random: np.random.RandomState) -> Ints:
    positions = np.arange(count, dtype=np.int32)
    if random.random_sample() < JUMP_SHARE:
        positions[random.randint(count) :] += random.randint(MAX_JUMP)
    return positions
