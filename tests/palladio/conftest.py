"""Fixtures that tests of commands share."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_handler_is_left() -> Iterator[None]:
    """An engine in this process sends its log to standard error, which for one test is the test's own."""
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    for handler in [one for one in root.handlers if type(one) is logging.StreamHandler and one not in before]:
        root.removeHandler(handler)
