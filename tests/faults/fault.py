"""A fault: a small change of one file that reads like a slip of the hand."""

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
