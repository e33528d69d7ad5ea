"""Property tests: the choice of their examples. `examples` sets their number; everything else is in the profiles.

    same         the default, whatever the environment says: the same examples everywhere, and a failing one as it is
    long         new examples each time, many more; the seed is printed, --hypothesis-seed repeats them
    shrink       those of `same`, a failing one made as small as possible: that may take minutes
    long-shrink  those of `long`, a failing one made as small as possible; needs --hypothesis-seed

`pytest --hypothesis-profile=NAME` chooses; `make test-long` takes `long`.
"""

import hypothesis
from hypothesis import HealthCheck, Phase

_FACTOR = 10  # how many more the long run draws
_COUNT = 100  # of a test that asks for none


def register() -> None:
    """Makes the profiles known and loads the default one. Hypothesis would take one of its own where CI is set."""
    drawn = (Phase.explicit, Phase.generate, Phase.target)
    for name, is_long, phases in (
        ("same", False, drawn),
        ("long", True, drawn),
        ("shrink", False, (*drawn, Phase.shrink)),
        ("long-shrink", True, (*drawn, Phase.shrink)),
    ):
        hypothesis.settings.register_profile(
            name,
            max_examples=_COUNT * (_FACTOR if is_long else 1),
            derandomize=not is_long,
            database=None,
            deadline=None,
            phases=phases,
            # How slow it is depends on what else runs; and fixtures are shared by all examples, as tests know.
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        )
    hypothesis.settings.load_profile("same")


def is_long() -> bool:
    """Return whether the profile in use is a long one."""
    return not hypothesis.settings().derandomize


def examples(count: int, long: int | None = None) -> hypothesis.settings:
    """Decorate a property test.

    Args:
        count: number of examples.
        long: number in the long run; default: ten times as many.
    """
    return hypothesis.settings(max_examples=(long or _FACTOR * count) if is_long() else count)


def command(nodeid: str, seed: str | None) -> str:
    """Return the command that shrinks the failing example of a test.

    Args:
        seed: seed of the long run.
    """
    choice = f"long-shrink --hypothesis-seed={seed}" if is_long() else "shrink"
    return f"pytest --timeout 3600 --hypothesis-profile={choice} '{nodeid}'"
