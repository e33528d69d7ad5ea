"""Starts that end in trials of kernels: twice again, then without kernels, and no more."""

from palladio.runtime.front.control.supervisor import TrialRestarts
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.engine_state import EngineFailed
from palladio.runtime.process.transport import EngineTransport

CONFIG = EngineConfig.from_flags({"model_path": "x"})


class Transport:
    """Cannot start a process."""

    shares_interpreter = False

    def __init__(self) -> None:
        self.stops = 0

    def start(self, config, receive) -> None:
        raise BlockingIOError(11, "no processes")

    def send(self, message) -> None: ...

    async def stop(self, timeout: float) -> None:
        self.stops += 1


def failure(trial: str = "op/backend") -> EngineFailed:
    return EngineFailed("it hangs", config=False, trial=trial)


def test_the_last_start_uses_no_kernel(caplog):
    restarts = TrialRestarts(Transport())
    assert [restarts.next_config(CONFIG, failure()) for _ in range(2)] == [CONFIG, CONFIG]
    last = restarts.next_config(CONFIG, failure("op/third"))
    assert last is not None
    assert last.execution.attention_backend == "xla"
    assert "--attention-backend xla" in caplog.messages[-1]
    assert "op/third" in caplog.messages[-1]
    assert restarts.next_config(last, failure()) is None


def test_other_failures_end_the_start():
    assert TrialRestarts(Transport()).next_config(CONFIG, failure("")) is None
    several = EngineConfig.from_flags(
        {"model_path": "x", "nnodes": 2, "node_rank": 0, "dist_init_addr": "127.0.0.1:43501", "tp_size": 2}
    )
    assert TrialRestarts(Transport()).next_config(several, failure()) is None


async def test_a_process_that_cannot_be_made_is_a_failure():
    transport: EngineTransport = Transport()
    found = await TrialRestarts(transport).start(CONFIG, lambda message: None)
    assert found is not None
    assert not found.config
    assert not found.trial
