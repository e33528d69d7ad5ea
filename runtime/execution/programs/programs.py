"""The list of programs: everything that a running engine calls on the device.

The classes are in the files of this folder, by what they do: run the layers, sample, verify drafts, change the cache.
The engine declares each program at its start, in this order, and runs no other.
"""

from collections.abc import Sequence
from typing import Final

from palladio.runtime.execution.programs.cache_programs import Compare, CopyStates, Tables
from palladio.runtime.execution.programs.draft_programs import Draft, Verify
from palladio.runtime.execution.programs.pool_programs import Pool, PoolTokens
from palladio.runtime.execution.programs.program import Program, ProgramDesign
from palladio.runtime.execution.programs.step_programs import (
    Decode,
    Forward,
    ForwardMedia,
    Reset,
    Sample,
    Score,
    WriteEmbeds,
)

PROGRAMS: Final[tuple[type[Program], ...]] = (
    *(Draft, Forward, ForwardMedia, WriteEmbeds, Verify, Decode),
    *(Score, Pool, PoolTokens, Sample, Reset, Tables, Compare, CopyStates),
)


def declare_programs(design: ProgramDesign) -> Sequence[Program]:
    """The closed set of programs."""
    return [program for kind in PROGRAMS for program in kind.declare(design)]
