"""CompileStats: how the engine's programs came to be."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramReport:
    """How a program came to be.

    Attributes:
        name: what it does, and its bucket.
        result: "exported", loaded from --compiled-dir; "hit", from the persistent cache; "miss", compiled; "failed",
            it could not be compiled in the background.
        seconds: that it took, tracing included.
    """

    name: str
    result: str
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class CompileStats:
    """The closed set of programs, and how far it is built.

    Attributes:
        num_programs: in the set.
        programs: those that are built.
        wait_seconds: that steps have waited for programs which were not (--compile lazy).
    """

    num_programs: int = 0
    programs: list[ProgramReport] = dataclasses.field(default_factory=list)
    wait_seconds: float = 0.0

    def count(self, result: str) -> int:
        """Programs that were made this way."""
        return sum(program.result == result for program in self.programs)
