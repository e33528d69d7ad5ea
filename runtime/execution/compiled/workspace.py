"""Device memory that compiled programs need in addition to their arguments."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Self

from palladio.runtime.execution.programs.program import ProgramKey


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramMemory:
    """Bytes of device memory that a program needs in addition to its arguments.

    Attributes:
        scratch: while it runs.
        results: results that do not replace arguments.
        code: always.
    """

    scratch: int
    results: int
    code: int

    @classmethod
    def of(cls, program: Any) -> Self:
        """Read what a compiled program needs.

        Args:
            program: as jax compiled it.
        """
        memory = program.memory_analysis()
        if memory is None:  # the platform does not say
            return cls(0, 0, 0)
        results = max(0, memory.output_size_in_bytes - memory.alias_size_in_bytes)
        return cls(memory.temp_size_in_bytes, results, memory.generated_code_size_in_bytes)


def workspace_of(programs: Mapping[ProgramKey, ProgramMemory], declared: Iterable[ProgramKey]) -> int:
    """Bytes that all programs need: the hungriest one while it runs, the results of the one before it, and the code of
    all.

    Args:
        programs: all, or the largest of each family.
        declared: all that there will be. One that is not known yet has as much code as the longest known one of its
            family; without any, it is a small program, with as much code as the shortest of all.
    """
    if not programs:
        return 0
    hungriest = max(need.scratch + need.results for need in programs.values())
    shortest = min(need.code for need in programs.values())
    longest: collections.defaultdict[tuple[str, bool], int] = collections.defaultdict(lambda: 0)
    for key, need in programs.items():
        longest[key.family] = max(longest[key.family], need.code)
    code = sum(programs[key].code if key in programs else longest[key.family] or shortest for key in declared)
    return hungriest + max(need.results for need in programs.values()) + code
