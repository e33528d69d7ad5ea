"""A pytest plugin for the openai SDK's tests: takes fields out of request bodies before they are sent, and adds some.

PALLADIO_WITHOUT_FIELDS holds the names of the first, separated by commas, PALLADIO_ADDED_FIELDS the others as JSON.
"""

import json
import os
from typing import Any

import pytest
from openai import _base_client


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    dropped = set(os.environ["PALLADIO_WITHOUT_FIELDS"].split(","))
    added = json.loads(os.environ["PALLADIO_ADDED_FIELDS"])
    build = _base_client.BaseClient._build_request  # the one place that all kinds of clients send through

    def without(self: Any, options: Any, **kwargs: Any) -> Any:
        if isinstance(options.json_data, dict):
            kept = {name: value for name, value in options.json_data.items() if name not in dropped}
            options.json_data = added | kept
        return build(self, options, **kwargs)

    patch = pytest.MonkeyPatch()
    patch.setattr(_base_client.BaseClient, "_build_request", without)
    config.add_cleanup(patch.undo)
