"""The checks of a start's result alone, as `palladio doctor --kernels` makes them."""

import pytest

from palladio.model.base.errors import ReadBackError
from palladio.model.loading.read_back import ReadBack
from palladio.runtime.core.start.start_check import check_start
from palladio.runtime.interface.config.config import EngineConfig
from tests.runtime.tiny_engine import FLAGS, build_tiny_model_dir

SIZES = {"max_running_requests": 2, "cuda_graph_bs": (1,), "fail_on_recompile": False, "start_check": "never"}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = build_tiny_model_dir(tmp_path_factory.mktemp("start-check"))
    return EngineConfig.from_flags({"model_path": str(folder), **FLAGS, **SIZES})


def test_the_model_is_loaded_read_back_and_asked_whatever_the_flags_say(config, monkeypatch):
    steps = []
    monkeypatch.setattr(ReadBack, "check", lambda self, arrays: steps.append("read back"))
    answer = check_start(config, ["ragged_paged_attention/faulty"], lambda size: steps.append(size.num_bytes > 0))
    assert answer is not None
    assert answer.problem == ""
    assert steps == ["read back", True]


def test_wrong_weights_end_the_check(config, monkeypatch):
    def fail(self, arrays):
        raise ReadBackError("on this device")

    monkeypatch.setattr(ReadBack, "check", fail)
    with pytest.raises(ReadBackError):
        check_start(config, [], lambda size: pytest.fail("loaded"))
