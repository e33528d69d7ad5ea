import pytest

from palladio.runtime.errors import ConfigError
from palladio.runtime.memory import DeviceMemory, PoolRequest, plan_pages

MIB = 2**20


def pool(**changes) -> PoolRequest:
    values = {
        "bytes_per_page": MIB,
        "page_size": 16,
        "wanted_tokens": None,
        "useful_tokens": 10**9,
        "weight_bytes": 100 * MIB,
        "fraction": 0.5,
    }
    return PoolRequest(**(values | changes))


def test_the_pool_takes_what_the_fraction_leaves_after_the_weights() -> None:
    assert plan_pages(DeviceMemory(1000 * MIB, 900 * MIB), pool()) == 400


def test_never_more_than_is_free_nor_than_is_useful() -> None:
    assert plan_pages(DeviceMemory(1000 * MIB, 50 * MIB), pool()) == 50
    assert plan_pages(DeviceMemory(1000 * MIB, 900 * MIB), pool(useful_tokens=160)) == 10 + 1  # and the scratch page


def test_max_total_tokens_is_taken_as_it_is_or_refused_with_what_would_fit() -> None:
    assert plan_pages(DeviceMemory(1000 * MIB, 900 * MIB), pool(wanted_tokens=100)) == 7 + 1
    with pytest.raises(ConfigError, match=r"--max-total-tokens 100000 needs .* --max-total-tokens 6384 would fit"):
        plan_pages(DeviceMemory(1000 * MIB, 900 * MIB), pool(wanted_tokens=100000))


def test_weights_that_leave_nothing() -> None:
    with pytest.raises(ConfigError, match="raise --mem-fraction-static"):
        plan_pages(DeviceMemory(1000 * MIB, 900 * MIB), pool(weight_bytes=600 * MIB))


def test_host_memory_is_what_is_available_not_only_what_is_free() -> None:
    from palladio.runtime.memory import _host_memory

    memory = _host_memory()
    with open("/proc/meminfo") as file:
        info = dict(line.split(":", 1) for line in file)
    assert 0 < memory.available <= memory.total <= int(info["MemTotal"].split()[0]) * 1024
