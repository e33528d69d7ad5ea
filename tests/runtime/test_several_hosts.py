"""What hosts do before they meet: the port that jax gets, and how long one may be silent."""

import concurrent.futures
import socket

import pytest

from palladio.runtime import several_hosts
from palladio.runtime.config import EngineConfig
from tests.runtime.meeting import Ends, free_address


def config(folder, rank=0, address=("10.0.0.1", 8478), **flags):
    hosts = {"nnodes": 2, "node_rank": rank, "dist_init_addr": f"{address[0]}:{address[1]}"}
    return EngineConfig.from_flags({"model_path": str(folder), **hosts, **flags})


def test_jax_gets_the_port_after_the_first_one_or_any_free_one(tiny_dir, monkeypatch):
    told = []
    monkeypatch.setattr(several_hosts, "_initialize", lambda invitation, port: told.append((invitation.rank, port)))

    def port_of_jax(address):
        told.clear()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            joined = pool.submit(several_hosts.join, config(tiny_dir, 1, address), Ends())
            leader, _ = several_hosts.lead(config(tiny_dir, 0, address), Ends())
            joined.result(10)
            leader.close()
        assert [rank for rank, _ in sorted(told)] == [0, 1]
        (port,) = {port for _, port in told}  # the same on both
        return port

    address = host, first = free_address()
    assert port_of_jax(address) == first + 1
    address = host, first = free_address()
    with socket.create_server((host, first + 1)):
        other = port_of_jax(address)
        assert other not in (first, first + 1)
        with socket.create_server((host, other)):
            pass


@pytest.mark.parametrize(("watchdog_timeout", "silence"), [(300.0, 60.0), (61.0, 60.0), (7.0, 7.0), (0.0, 60.0)])
def test_a_host_may_be_silent_for_60_seconds_or_a_shorter_watchdog_timeout(tiny_dir, watchdog_timeout, silence):
    for rank in (0, 1):
        invitation = several_hosts.invitation_of(config(tiny_dir, rank, watchdog_timeout=watchdog_timeout))
        assert invitation.silence == silence
