"""How the tests are spread over processes: what shares something costly runs in one of them."""

import pytest

SHARED = ("shared_server", "thinking_servers")  # session fixtures that start servers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For `pytest --dist loadgroup`."""
    for item in items:
        assert isinstance(item, pytest.Function)
        shared = next((name for name in SHARED if name in item.fixturenames), None)
        item.add_marker(pytest.mark.xdist_group(shared or item.path.name))
