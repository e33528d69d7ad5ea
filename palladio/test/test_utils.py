"""`is_in_ci`, as SGLang's tutorials ask it."""

import os

__test__ = False  # the name is SGLang's; there are no tests in it


def is_in_ci() -> bool:
    """Whether SGLANG_IS_IN_CI is set to 1 or true; such a tutorial then imports a module `patch` of its own folder."""
    return os.environ.get("SGLANG_IS_IN_CI", "").lower() in ("1", "true")
