"""A host beside host 0: the calls that it makes, and its exit code. Threads stand for hosts."""

import concurrent.futures
import contextlib
import queue
import threading
import types
from types import SimpleNamespace

import numpy as np
import pytest

from palladio.runtime.core.start import host_worker
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.multihost import bootstrap, links
from tests.runtime.multihost.meeting import Ends, free_address


class Executor:
    """Keeps what it is told to do."""

    def __init__(self):
        self.told = queue.SimpleQueue()
        built = {"ensure": lambda key: self.told.put(("build", str(key))), "expecting_compiles": contextlib.nullcontext}
        self.programs = SimpleNamespace(built=SimpleNamespace(**built))

    def reset_state(self):
        self.told.put("reset")

    def release_cache(self):
        self.told.put("release")

    def call(self, key, *arrays):
        self.told.put((str(key), [array.tolist() for array in arrays]))


@pytest.fixture
def executor(monkeypatch):
    """Of the host that follows; jax is told of no other host."""
    executor = Executor()
    built = SimpleNamespace(
        executor=executor, design=None, warm_up=SimpleNamespace(go_on=lambda: executor.told.put("ready"))
    )
    monkeypatch.setattr(host_worker, "build_executor", lambda config, on_progress, agree, listener, on_hung: built)
    monkeypatch.setattr(bootstrap, "_initialize", lambda invitation, port, config, wait: None)
    monkeypatch.setattr(links, "BEAT_SECONDS", 0.05)
    return executor


@pytest.fixture
def exit_codes(monkeypatch):
    """What the host that follows would exit with, again and again: its threads outlive the test, so what they call
    stays replaced."""
    codes = queue.SimpleQueue()
    names = vars(host_worker) | {"os": SimpleNamespace(_exit=codes.put)}
    monkeypatch.setattr(host_worker, "_end", types.FunctionType(host_worker._end.__code__, names))
    return codes


class Hosts:
    """Host 0, host 1, which only listens, and host 2, which follows."""

    def __init__(self, folder, **flags):
        host, port = free_address()
        flags = {"model_path": str(folder), "nnodes": 3, "dist_init_addr": f"{host}:{port}", **flags}
        configs = [EngineConfig.from_flags({**flags, "node_rank": rank}) for rank in range(3)]
        following = (configs[2], lambda progress: None)
        self.thread = threading.Thread(
            target=host_worker.run_host_worker, args=following, daemon=True
        )  # it never returns
        self.thread.start()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            joined = pool.submit(bootstrap.join, configs[1], Ends())
            self.ends = Ends()
            self.leader, _ = bootstrap.lead(configs[0], self.ends)
            self.member, _ = joined.result(10)


def close_links(leader):
    for link in leader._links.values():
        link.close()


ENDS = {
    "another host ends": (lambda hosts: hosts.member._link.close(), 1),
    "another host fails": (lambda hosts: hosts.member.fail("no memory is left for the KV cache"), 1),
    "host 0 is killed": (lambda hosts: close_links(hosts.leader), 1),
    "host 0 fails": (lambda hosts: hosts.leader.close("host 0 failed: RuntimeError: something else"), 1),
    "host 0 is told to end": (lambda hosts: hosts.leader.close(), 0),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_host_ends_with_1_unless_host_0_ends_in_an_orderly_way(tiny_dir, executor, exit_codes, case):
    end, code = ENDS[case]
    hosts = Hosts(tiny_dir)
    assert executor.told.get(timeout=10) == "ready"
    end(hosts)
    assert exit_codes.get(timeout=10) == code
    hosts.leader.close()


def test_a_host_that_hears_nothing_of_host_0_ends_with_1(tiny_dir, executor, exit_codes, caplog):
    hosts = Hosts(tiny_dir, watchdog_timeout=0.5)
    hosts.leader._heartbeat.stop()
    assert exit_codes.get(timeout=10) == 1
    assert "This host stops: connection to host 0 lost: no heartbeat for 0.5 s" in caplog.text
    hosts.leader.close()


def test_a_host_makes_the_calls_that_it_is_told_of(tiny_dir, executor, exit_codes):
    hosts = Hosts(tiny_dir)
    assert executor.told.get(timeout=10) == "ready"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(hosts.member.smallest, 0)  # host 1 has the program too
        with hosts.leader.building(("forward", 8, 0, None)):
            assert executor.told.get(timeout=10) == ("build", "forward[bs=8]")
        answer.result(10)
    hosts.leader.call(("sample", 8, 0, "greedy"), (np.arange(3, dtype=np.int32),))
    hosts.leader.order("release_cache", "")
    hosts.leader.call(None, ())
    assert executor.told.get(timeout=10) == ("sample[bs=8,greedy]", [[0, 1, 2]])
    assert executor.told.get(timeout=10) == "release"
    assert executor.told.get(timeout=10) == "reset"
    hosts.leader.close()


def test_what_a_host_fails_of_is_told_to_all(tiny_dir, executor, exit_codes, monkeypatch):
    def fail(config, on_progress, agree, listener, on_hung):
        raise ConfigError("no memory is left for the KV cache")

    monkeypatch.setattr(host_worker, "build_executor", fail)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    hosts = Hosts(tiny_dir)
    assert hosts.ends.wait().endswith("lost: no memory is left for the KV cache")
    assert hosts.ends.wait().startswith("connection to host 2 (")
    hosts.thread.join(10)
    assert not hosts.thread.is_alive()  # its error is the command's, see run_worker
