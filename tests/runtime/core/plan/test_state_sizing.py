"""How many requests may run and how many snapshots there are, of a model whose layers keep states."""

import logging
from typing import Any

import pytest

from benchmarks.support.checkpoints import QWEN3_NEXT_80B
from palladio.model.config.config import ModelConfig
from palladio.runtime.core.plan.state_sizing import SNAPSHOT_SHARE, STATE_SHARE, describe_snapshots
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.planning.deployment import Deployment
from palladio.runtime.planning.hardware import find_slice

ONE = 3 * (2 * 2**20 + 48 * 1024)  # bytes of three layers' states
FOUR_LAYERS = QWEN3_NEXT_80B | {"num_hidden_layers": 4, "num_experts": 16}


def deployment(topology: str = "v6e-1", model: dict[str, Any] = FOUR_LAYERS, **flags: Any) -> Deployment:
    config = EngineConfig.from_flags({"model_path": "m", **flags})
    return Deployment.of(config, ModelConfig.from_hf(model), find_slice(topology))


def test_memory_is_shared_between_states_snapshots_and_pages(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "palladio.engine"):
        few = deployment("v5e-1", FOUR_LAYERS | {"num_hidden_layers": 12, "num_experts": 80})
    room = 0.92 * few.place.chip.memory - few.weight_bytes
    shape = few.shape
    assert 0.75 * STATE_SHARE < 3 * ONE * (shape.num_slots - 1) / room <= STATE_SHARE
    assert 0.75 * SNAPSHOT_SHARE < 3 * ONE * shape.num_snapshots / room <= SNAPSHOT_SHARE
    assert f"At most {few.limits.max_running} requests run at once, not 256: the states of each take 18.4 MiB" in (
        caplog.text
    )
    config = EngineConfig.from_flags({"model_path": "m"})
    table = "\n".join(few.plan(config, 0).table())
    assert f"  {shape.num_snapshots} of states, for the prefix cache; --state-snapshot-bytes" in table
    assert few.plan(config, 0).report.snapshots == shape.num_snapshots * 3 * ONE
    assert f"{shape.num_snapshots} snapshots of 18.4 MiB a device" in describe_snapshots(shape, "A")
    assert shape.page_groups.snapshots is not None
    assert shape.page_groups.snapshots.numbers[0] == shape.num_slots == few.limits.max_running + 1


def test_flags_decide_where_they_are_given(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "palladio.engine"):
        given = deployment(
            max_running_requests=40, state_snapshot_bytes=10 * ONE - 1, state_snapshot_interval=100, page_size=32
        ).shape
    assert (given.num_slots, given.num_snapshots, given.snapshot_interval) == (41, 9, 128)
    assert given.cache.state is not None
    assert given.cache.state.num_slots == 50
    assert "At most" not in caplog.text
    with pytest.raises(
        ConfigError, match=f"--state-snapshot-bytes 5 is less than one snapshot, which takes {ONE} bytes"
    ):
        deployment(state_snapshot_bytes=5)
    with pytest.raises(ConfigError, match="--state-snapshot-bytes must be at least 0, got -1"):
        deployment(state_snapshot_bytes=-1)


@pytest.mark.parametrize(
    "flags", [{"disable_radix_cache": True}, {"state_snapshot_bytes": 0}, {"chunked_prefill_size": -1}], ids=str
)
def test_no_snapshots_and_no_prefix_cache(flags: dict[str, Any]) -> None:
    shape = deployment(context_length=4096, **flags).shape
    assert shape.num_snapshots == 0
    assert not shape.page_groups.can_share
    assert "The prefix cache is off: layers of A keep states" in describe_snapshots(shape, "A")


def test_each_rank_has_its_own() -> None:
    ranks = deployment("v6e-8", dp_size=2, tp_size=4, state_snapshot_bytes=10 * ONE // 4, max_running_requests=40)
    assert (ranks.shape.num_slots, ranks.shape.num_snapshots) == (21, 10)
    cache = ranks.shape.cache
    assert cache.states(cache.abstract(1, ranks.shape.mesh))[0].memory.shape[0] == 2 * 31
