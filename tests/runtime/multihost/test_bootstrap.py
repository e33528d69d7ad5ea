"""What hosts do before they meet: the port that jax gets, and how long one may be silent."""

import concurrent.futures
import socket
import time

import pytest

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.multihost import bootstrap
from tests.runtime.multihost.meeting import Ends, free_address


def config(folder, rank=0, address=("10.0.0.1", 8478), **flags):
    hosts = {"nnodes": 2, "node_rank": rank, "dist_init_addr": f"{address[0]}:{address[1]}", "dist_timeout": 10}
    return EngineConfig.from_flags({"model_path": str(folder), **hosts, **flags})


@pytest.fixture
def told(monkeypatch):
    """Rank and jax's port of each host, and whether the port was free when jax was to listen on it."""
    found = []

    def initialize(rendezvous, port, config, wait):
        is_free = rendezvous.rank > 0
        if not is_free:
            with socket.create_server((rendezvous.address[0], port)):
                is_free = True
        found.append((rendezvous.rank, port, is_free))

    monkeypatch.setattr(bootstrap, "_initialize", initialize)
    return found


def meet(folder, address, leader_flags, member_flags):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        joined = pool.submit(bootstrap.join, config(folder, 1, address, **member_flags), Ends())
        leader, _ = bootstrap.lead(config(folder, 0, address, **leader_flags), Ends())
        joined.result(10)
        leader.close()


def test_jax_gets_the_port_after_the_first_one(tiny_dir, told):
    address = _, first = free_address()
    meet(tiny_dir, address, {}, {})
    assert sorted(told) == [(0, first + 1, True), (1, first + 1, True)]


def test_or_the_one_that_host_0_was_given_whatever_the_others_were(tiny_dir, told):
    address, (_, other) = free_address(), free_address()
    meet(tiny_dir, address, {"dist_coordinator_port": other}, {"dist_coordinator_port": 1})
    assert sorted(told) == [(0, other, True), (1, other, True)]


def test_or_any_free_one(tiny_dir, told):
    address = host, first = free_address()
    with socket.create_server((host, first + 1)):
        meet(tiny_dir, address, {"dist_coordinator_port": 0}, {})
    ports = {port for _, port, _ in told}
    assert len(ports) == 1
    assert not ports & {0, first, first + 1}


@pytest.mark.parametrize("is_given", [False, True])
def test_a_taken_port_is_named_at_once_with_its_flag(tiny_dir, told, is_given):
    """jax does not look: its process ends with a segmentation fault."""
    address = host, first = free_address()
    with socket.create_server((host, first + 1)), pytest.raises(ConfigError) as error:
        bootstrap.lead(config(tiny_dir, 0, address, dist_coordinator_port=first + 1 if is_given else None), Ends())
    named = "--dist-coordinator-port {}" if is_given else "port {} (the --dist-init-addr port + 1)"
    assert str(error.value).startswith(f"host 0 cannot listen on {named.format(first + 1)} at 127.0.0.1 (")
    assert "with --dist-coordinator-port (0: any free port)" in str(error.value)
    assert told == []


def test_nobody_takes_the_port_while_hosts_are_awaited(tiny_dir, told):
    address = host, first = free_address()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        leading = pool.submit(bootstrap.lead, config(tiny_dir, 0, address), Ends())
        deadline = time.monotonic() + 60
        while not _is_taken(host, first + 1):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for _ in range(20):
            assert _is_taken(host, first + 1)
            time.sleep(0.01)
        bootstrap.join(config(tiny_dir, 1, address), Ends())
        leader, _ = leading.result(10)
        leader.close()
    assert sorted(told) == [(0, first + 1, True), (1, first + 1, True)]


def _is_taken(host, port):
    try:
        with socket.create_server((host, port)):
            return False
    except OSError:
        return True


@pytest.mark.parametrize(("watchdog_timeout", "silence"), [(300.0, 60.0), (61.0, 60.0), (7.0, 7.0), (0.0, 60.0)])
def test_a_host_may_be_silent_for_60_seconds_or_a_shorter_watchdog_timeout(tiny_dir, watchdog_timeout, silence):
    for rank in (0, 1):
        rendezvous = bootstrap.rendezvous_of(config(tiny_dir, rank, watchdog_timeout=watchdog_timeout))
        assert rendezvous.silence == silence
