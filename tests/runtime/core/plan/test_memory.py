"""Who gets the device's memory, and what is said when it does not suffice."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palladio.runtime.core.plan import memory
from palladio.runtime.core.plan.memory import DeviceMemory, MemoryNeeds, _host_memory, bytes_in_use, plan_memory
from palladio.runtime.interface.errors import ConfigError

MIB = 2**20
EMPTY = DeviceMemory(1000 * MIB, 1000 * MIB)


def needs(**changes) -> MemoryNeeds:
    values = {
        "platform": "tpu",
        "weights": 100 * MIB,
        "state": 10 * MIB,
        "bytes_per_page": MIB,
        "page_size": 16,
        "wanted_tokens": None,
        "useful_tokens": 10**9,
        "fraction": None,
    }
    return MemoryNeeds(**(values | changes))


def test_the_pool_takes_what_the_others_leave() -> None:
    plan = plan_memory(EMPTY, needs(), workspace=50 * MIB)
    # 92 % of 1000, less 100, 10 and 50: 760 MiB; in round figures, so that programs are found again
    assert plan.num_pages == 752 + 1
    report = plan.report
    assert (report.total, report.usable, report.weights) == (1000 * MIB, 920 * MIB, 100 * MIB)
    assert report.planned <= report.usable
    assert plan.is_tight


def test_tokens_that_several_block_tables_keep_take_a_page_of_each() -> None:
    plan = plan_memory(EMPTY, needs(num_tables=5, wanted_tokens=160), workspace=0)
    assert (plan.num_pages, plan.num_tokens) == (50 + 1, 160)
    with pytest.raises(ConfigError, match="--max-total-tokens 2832 would fit"):  # 889 pages
        plan_memory(EMPTY, needs(num_tables=5, wanted_tokens=10**6), workspace=0)
    with pytest.raises(ConfigError, match="no memory is left"):
        plan_memory(EMPTY, needs(num_tables=5, weights=905 * MIB), workspace=0)
    assert plan_memory(EMPTY, needs(num_tables=5, weights=904 * MIB), workspace=0).num_tokens == 16


def test_the_pool_of_a_cpu_leaves_half_to_others() -> None:
    assert plan_memory(EMPTY, needs(platform="cpu"), 0).report.usable == 500 * MIB


def test_a_fraction_is_for_weights_and_pool() -> None:
    plan = plan_memory(EMPTY, needs(fraction=0.5), workspace=50 * MIB)
    assert plan.report.weights + plan.report.kv_cache <= 500 * MIB
    assert plan.num_pages == 392 + 1


def test_never_more_than_is_free_nor_than_is_useful() -> None:
    assert plan_memory(DeviceMemory(1000 * MIB, 164 * MIB), needs(), 0).num_pages == 53 + 1
    plan = plan_memory(EMPTY, needs(useful_tokens=160), 0)
    assert plan.num_pages == 10 + 1  # and the scratch page
    assert not plan.is_tight


def test_a_pool_is_the_same_where_a_little_less_is_free() -> None:
    pages = {plan_memory(DeviceMemory(1000 * MIB, (700 - less) * MIB), needs(), 0).num_pages for less in range(8)}
    assert len(pages) == 1


def test_max_total_tokens_is_taken_as_it_is_or_refused_with_what_would_fit() -> None:
    assert plan_memory(EMPTY, needs(wanted_tokens=100), 0).num_pages == 7 + 1
    with pytest.raises(
        ConfigError, match=r"--max-total-tokens 100000 needs .* --max-total-tokens (\d+) would fit"
    ) as e:
        plan_memory(EMPTY, needs(wanted_tokens=100000), 50 * MIB)
    fits = int(re.findall(r"\d+", str(e.value))[-1])
    assert plan_memory(EMPTY, needs(wanted_tokens=fits), 50 * MIB).num_tokens == fits


@given(
    weights=st.integers(0, 1200),
    state=st.integers(0, 100),
    workspace=st.integers(0, 400),
    free=st.integers(1, 1000),
    page=st.integers(1, 50),
    fraction=st.none() | st.floats(0.01, 1.0),
    wanted=st.none() | st.integers(1, 20000),
    platform=st.sampled_from(["cpu", "tpu"]),
)
def test_a_plan_always_fits_and_a_value_that_is_said_to_fit_does(
    weights, state, workspace, free, page, fraction, wanted, platform
) -> None:
    device = DeviceMemory(1000 * MIB, free * MIB)
    asked = needs(
        weights=weights * MIB,
        state=state * MIB,
        bytes_per_page=page * MIB,
        fraction=fraction,
        wanted_tokens=wanted,
        platform=platform,
    )
    try:
        plan = plan_memory(device, asked, workspace * MIB)
    except ConfigError as refusal:
        message = str(refusal)
    else:
        message = None
    if message is not None:
        advice = re.search(r"--(max-total-tokens|mem-fraction-static) ([\d.]+) (or more )?would fit", message)
        if advice is None:
            assert "use a smaller model or --dtype, or a larger --tp-size" in message
            return
        flag, value, _ = advice.groups()
        if float(value) == 0:
            return  # nothing fits
        changes = {"wanted_tokens": int(value)} if flag == "max-total-tokens" else {"fraction": float(value)}
        plan = plan_memory(device, needs(**(_fields(asked) | changes)), workspace * MIB)
    assert plan.num_pages >= 2
    assert plan.report.planned <= plan.report.usable <= device.available


def _fields(asked: MemoryNeeds) -> dict:
    return {name: getattr(asked, name) for name in asked.__dataclass_fields__}


def test_a_pool_that_was_asked_for_may_take_all_that_is_free() -> None:
    report = plan_memory(EMPTY, needs(wanted_tokens=800 * 16), 50 * MIB).report
    assert report.planned <= report.usable == 1000 * MIB


def test_weights_that_leave_nothing() -> None:
    with pytest.raises(ConfigError, match=r"--mem-fraction-static 0.5; --mem-fraction-static 0.61 or more would fit"):
        plan_memory(EMPTY, needs(weights=600 * MIB, fraction=0.5), 0)
    few = needs(platform="cpu", weights=0, state=MIB, bytes_per_page=50 * MIB)
    with pytest.raises(ConfigError, match=r"× --mem-fraction-static; --mem-fraction-static 0.1 or more would fit"):
        plan_memory(DeviceMemory(1000 * MIB, 501 * MIB), few, workspace=400 * MIB)
    with pytest.raises(ConfigError, match="use a smaller model or --dtype, or a larger --tp-size"):
        plan_memory(EMPTY, needs(weights=1100 * MIB), 0)


def test_a_fraction_that_leaves_the_programs_too_little() -> None:
    with pytest.raises(ConfigError, match=r"which need 310.0 MiB .* --mem-fraction-static 0.69 would fit"):
        plan_memory(EMPTY, needs(fraction=0.9), workspace=300 * MIB)


def test_the_table_adds_up() -> None:
    plan = plan_memory(EMPTY, needs(), workspace=50 * MIB)
    head, *rows = plan.table()
    assert "1000.0 MiB" in head
    sizes = [float(re.search(r"([\d.]+) MiB", row).group(1)) for row in rows]
    assert sum(sizes) == pytest.approx(1000, abs=0.5)
    assert f"{plan.num_tokens:,} tokens" in plan.table()[2]


def test_groups_stay_where_another_host_has_fewer_pages() -> None:
    plan = plan_memory(EMPTY, needs(num_ranks=2), workspace=50 * MIB)
    fewer = plan.with_pages(101)
    assert (fewer.num_tokens, fewer.total_tokens) == (1600, 3200)
    assert fewer.report.kv_cache == 101 * MIB
    assert "1,600 tokens in pages of 16, for each of 2 data-parallel ranks" in "\n".join(fewer.table())


def test_a_containers_page_cache_is_not_used_memory(monkeypatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 1000000 kB\nMemAvailable: 900000 kB\n",
        "/sys/fs/cgroup/memory.max": "500000000\n",
        "/sys/fs/cgroup/memory.current": "450000000\n",
        "/sys/fs/cgroup/memory.stat": "anon 50000000\ninactive_file 380000000\nactive_file 20000000\n",
    }
    monkeypatch.setattr(memory, "_read", lambda path: files.get(str(path), ""))
    assert _host_memory() == DeviceMemory(500000000, 500000000 - 450000000 + 380000000)


def test_host_memory_is_what_is_available_not_only_what_is_free() -> None:
    host = _host_memory()
    with open("/proc/meminfo") as file:
        info = dict(line.split(":", 1) for line in file)
    assert 0 < host.available <= host.total <= int(info["MemTotal"].split()[0]) * 1024


@pytest.mark.parametrize(
    ("platform", "told", "expected"),
    [("gpu", {"bytes_in_use": 7, "bytes_limit": 9}, 7), ("tpu", None, None), ("cpu", {"bytes_in_use": 7}, None)],
)
def test_what_is_in_use_is_told_by_accelerators_alone(platform, told, expected):
    device = SimpleNamespace(platform=platform, memory_stats=lambda: told)
    assert bytes_in_use(device) == expected
