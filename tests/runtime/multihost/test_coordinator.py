"""The meeting of hosts: who is let in, what the others are told, who is found to be lost. Threads stand for hosts."""

import concurrent.futures
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest

from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, HostLostError
from palladio.runtime.multihost import coordinator, links
from palladio.runtime.multihost.coordinator import HostCoordinator, HostWorker
from palladio.runtime.multihost.host_check import Rendezvous
from palladio.runtime.multihost.links import Frame
from tests.runtime.multihost.meeting import CONFIG_DIGEST, Ends, Group, free_address, group, invite


@pytest.fixture(autouse=True)
def fast_beat(monkeypatch):
    monkeypatch.setattr(links, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(links, "_HELLO_SECONDS", 0.3)


@pytest.fixture
def address() -> tuple[str, int]:
    return free_address()


def attempt(address: tuple[str, int], *invitations: Rendezvous) -> list[str]:
    """Each host's error."""

    def go(rendezvous: Rendezvous) -> str:
        try:
            if rendezvous.rank == 0:
                HostCoordinator.meet(rendezvous, {}, Ends()).close()
            else:
                HostWorker.meet(rendezvous, Ends())
        except (ConfigError, HostLostError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(go, invitations))


def test_calls_arrive_in_order_with_their_arrays(address):
    with group(address, 3) as hosts:
        assert [welcome["random_seed"] for welcome in hosts.welcomes] == [5, 5]
        arrays = (np.arange(5, dtype=np.int32), np.ones((2, 3), np.float32), np.array(True), np.zeros((0, 4), np.int32))
        for number in range(20):
            hosts.leader.call(("forward", number, 0, None), arrays)
        hosts.leader.call(None, ())
        for worker in hosts.members:
            calls = worker.calls()
            for number in range(20):
                key, got = next(calls)
                assert key == ["forward", number, 0, None]
                for array, sent in zip(got, arrays, strict=True):
                    assert array.dtype == sent.dtype
                    np.testing.assert_array_equal(array, sent)
            assert next(calls) == (None, ())
        assert hosts.leader.num_calls == 21
        assert hosts.leader.num_sent_bytes > 2 * 20 * sum(array.nbytes for array in arrays)


def test_a_step_is_told_in_some_hundred_bytes_and_one_of_256_requests_in_nineteen_kilobytes(address, tiny_dir):
    flags = {"model_path": str(tiny_dir), "max_total_tokens": 8192, "max_running_requests": 256}
    programs = EnginePlan.of(EngineConfig.from_flags(flags)).programs.built
    sizes = {}
    with group(address) as hosts:
        hosts.leader._heartbeat.stop()
        for num_requests in (1, 256):
            before = hosts.leader.num_sent_bytes
            decode, sample = ProgramKey("forward", num_requests), ProgramKey("sample", num_requests, tier="greedy")
            for key, num_on_device in ((decode, 6), (sample, 4)):  # weights, state and the other's results
                _, args = programs.declaration(key)
                arrays = tuple(np.full(arg.shape, -1, arg.dtype) for arg in args[num_on_device:])
                assert len(arrays) == 1
                hosts.leader.call(key, arrays)
            sizes[num_requests] = hosts.leader.num_sent_bytes - before
    assert 100 <= sizes[1] < 1000
    assert 18_000 < sizes[256] < 20_000


def test_the_smallest_value_is_everybodys(address):
    with group(address, 3) as hosts, concurrent.futures.ThreadPoolExecutor() as pool:
        for values in ((7, 5, 9), (1, 2, 3), (4, 4, 4)):
            asked: list[Any] = [hosts.leader, *hosts.members]
            found = [pool.submit(one.smallest, value) for one, value in zip(asked, values, strict=True)]
            assert [one.result(10) for one in found] == [min(values)] * 3


def test_all_build_a_program_at_the_same_time(address):
    with group(address, 3) as hosts, concurrent.futures.ThreadPoolExecutor() as pool:
        calls = [worker.calls() for worker in hosts.members]
        hosts.leader.call(("reset", 0, 0, None), ())
        told, built = threading.Barrier(3), threading.Event()

        def lead() -> None:
            with hosts.leader.building(("forward", 8, 0, None)):
                told.wait(10)
            built.set()

        leading = pool.submit(lead)
        for one in calls:
            assert next(one) == (["reset", 0, 0, None], ())
        assert [pool.submit(next, one).result(10) for one in calls] == [(["forward", 8, 0, None], None)] * 2
        waiting = [pool.submit(told.wait, 10) for _ in calls]
        concurrent.futures.wait(waiting)
        first = pool.submit(hosts.members[0].smallest, 0)
        assert not built.wait(0.2), "host 0 goes on when all have the program"
        hosts.members[1].smallest(0)
        leading.result(10)
        first.result(10)
        assert built.is_set()


def test_a_host_that_cannot_build_a_program_is_named(address):
    with group(address) as hosts:
        with pytest.raises(HostLostError), hosts.leader.building(("forward", 8, 0, None)):
            hosts.members[0].fail("the program forward[bs=8] does not fit the device")
        assert hosts.ends[0].wait().endswith("lost: the program forward[bs=8] does not fit the device")


def test_an_orderly_end_ends_the_others(address):
    with group(address, 3) as hosts:
        hosts.leader.close()
        assert [end.wait() for end in hosts.ends[1:]] == ["", ""]
        assert not hosts.ends[0].messages


def test_a_host_that_ends_is_named_to_all(address):
    with group(address, 3) as hosts:
        hosts.members[0]._link.close()
        said = hosts.ends[0].wait()
        assert said.startswith("connection to host 1 (")
        assert said.endswith(" lost: it closed the connection")
        assert hosts.ends[2].wait() == said


def test_what_a_host_failed_of_is_told(address):
    with group(address, 3) as hosts:
        hosts.members[1].fail("no memory is left for the KV cache")
        said = hosts.ends[0].wait()
        assert said.startswith("connection to host 2 (")
        assert said.endswith("lost: no memory is left for the KV cache")
        assert hosts.ends[1].wait() == said
        with pytest.raises(HostLostError):
            hosts.leader.smallest(3)


def test_a_lost_host_is_named_before_whoever_waits_for_it_fails(address):
    with group(address) as hosts, concurrent.futures.ThreadPoolExecutor() as pool:
        goes_on = threading.Event()
        hosts.leader._on_lost = lambda message: goes_on.wait(10)
        waiting = pool.submit(hosts.leader.smallest, 3)
        hosts.members[0]._link.close()
        assert not concurrent.futures.wait([waiting], 0.3).done
        goes_on.set()
        with pytest.raises(HostLostError):
            waiting.result(10)


def test_a_step_that_fails_for_want_of_a_host_names_it(address):
    """The program's own error, which comes before the closed link is noticed, does not."""
    with group(address, 3) as hosts, concurrent.futures.ThreadPoolExecutor() as pool:
        goes_on = threading.Event()
        hosts.leader._on_lost = lambda message: goes_on.wait(10)
        checking = pool.submit(hosts.leader.check_loss)
        hosts.members[0]._link.close()
        hosts.members[1].await_end()
        assert not hosts.members[1]._listener.is_alive()
        assert hosts.ends[2].messages == [hosts.leader._loss], "before it tells of its own failure"
        assert not concurrent.futures.wait([checking], 0.2).done, "on_lost comes first"
        goes_on.set()
        with pytest.raises(HostLostError, match=r"connection to host 1 \(.*\) lost: it closed the connection"):
            checking.result(10)


def test_no_host_is_lost(address, monkeypatch):
    monkeypatch.setattr(coordinator, "_LOSS_SECONDS", 0.1)
    with group(address) as hosts:
        hosts.leader.check_loss()
        hosts.members[0].await_end()
        assert not hosts.ends[1].messages


def test_the_others_end_with_host_0(address):
    hosts = Group(address, 2)
    for link in hosts.leader._links.values():
        link.close()
    assert hosts.ends[1].wait() == "connection to host 0 lost: it closed the connection"


def test_a_silent_host_is_lost_on_both_sides(address):
    with group(address, 2, silence=0.5) as hosts:
        time.sleep(1.0)
        assert not hosts.ends[0].messages, "beats are words"
        hosts.members[0]._heartbeat.stop()
        assert hosts.ends[0].wait().endswith("lost: no heartbeat for 0.5 s")
    with group(address, 2, silence=0.5) as hosts:
        hosts.leader._heartbeat.stop()
        assert hosts.ends[1].wait() == "connection to host 0 lost: no heartbeat for 0.5 s"


def test_flags_that_differ_are_named_on_both(address):
    other = {**CONFIG_DIGEST, "--page-size": "32", "--tp-size": "8"}
    leader, worker = attempt(address, invite(address, 0), invite(address, 1, config_digest=other))
    assert leader == worker
    assert leader.startswith("ConfigError: host 0 and host 1 (")
    assert "--page-size is 16 here and 32 there; --tp-size is unknown here and 8 there" in leader


def test_node_counts_that_differ_are_named(address):
    leader, worker = attempt(address, invite(address, 0), invite(address, 1, num_hosts=4))
    assert leader == worker
    assert leader.startswith("ConfigError: --nnodes is 2 on host 0 and 4 on host 1 (")


def test_two_hosts_of_one_rank_are_named(address):
    found = attempt(address, invite(address, 0, 3), invite(address, 1, 3), invite(address, 1, 3))
    assert all("--node-rank 1 was given to host 1 (" in message for message in found)


def test_a_missing_host_is_named_within_the_timeout(address):
    begin = time.monotonic()
    leader, worker = attempt(address, invite(address, 0, 3, timeout=1.0), invite(address, 2, 3))
    assert time.monotonic() - begin < 5
    host, port = address
    missing = f"host 1 of 3 did not connect to {host}:{port} within 1 s (--dist-timeout)"
    assert leader.startswith(f"HostLostError: {missing}")
    assert missing in worker


def test_a_host_0_that_is_not_there_is_named(address):
    (worker,) = attempt(address, invite(address, 1, timeout=0.5))
    assert worker.startswith(f"HostLostError: host 0 did not answer at 127.0.0.1:{address[1]} within 0.5 s")


def test_a_late_host_finds_the_others_waiting(address):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        leader = pool.submit(HostCoordinator.meet, invite(address, 0), {}, Ends())
        time.sleep(1.0)
        worker, _ = HostWorker.meet(invite(address, 1), Ends())
        assert isinstance(worker, HostWorker)
        leader.result(5).close()


@pytest.mark.parametrize(
    "knock",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x05hello",
        b"\x00\x00\x00\x02[]",
        b'\x00\x00\x00\x0f{"kind":"sorry"}',
        b"\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff",
    ],
)
def test_strangers_are_not_let_in(address, knock):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        leader = pool.submit(HostCoordinator.meet, invite(address, 0), {}, Ends())
        silent = links.connect(address, time.monotonic() + 5)
        with socket.create_connection(address) as stranger:
            stranger.sendall(knock)
            stranger.shutdown(socket.SHUT_WR)
            HostWorker.meet(invite(address, 1), Ends())
        leader.result(30).close()
        silent.close()


def test_an_address_that_is_taken_is_named(address):
    with socket.create_server(address):
        (leader,) = attempt(address, invite(address, 0))
    assert leader.startswith(f"ConfigError: host 0 cannot listen on --dist-init-addr 127.0.0.1:{address[1]}")


def test_a_frame_is_what_was_sent():
    frame = Frame({"kind": "call", "text": "a\nb"}, (np.array([[1, -2]], np.int64),))
    found = Frame.decode(frame.encode())
    assert found.head == frame.head
    np.testing.assert_array_equal(found.arrays[0], frame.arrays[0])


def await_waiting(leader, *, is_waiting):
    deadline = time.monotonic() + 10.0
    while (leader.waiting_host() is not None) != is_waiting:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_host_that_waits_for_its_device_is_named_where_another_one_fails_for_it():
    with group(num_hosts=3) as hosts:
        hosts.members[0].tell_wait("process 4711 (python) has /dev/vfio/0 open")
        await_waiting(hosts.leader, is_waiting=True)
        hosts.members[1].fail("DEADLINE_EXCEEDED: Barrier timed out")
        message = hosts.ends[0].wait()
        assert message.startswith("host 1 (")
        assert "process 4711 (python) has /dev/vfio/0 open" in message


def test_a_host_that_waits_no_more_is_not_named():
    with group(num_hosts=3) as hosts:
        for why in ("process 4711 has it", ""):
            hosts.members[0].tell_wait(why)
            await_waiting(hosts.leader, is_waiting=bool(why))
        hosts.members[1].fail("broken")
        assert hosts.ends[0].wait().startswith("connection to host 2 (")
        assert hosts.leader.waiting_host() is None


def test_host_0_knows_that_it_waits_itself():
    with group() as hosts:
        hosts.leader.tell_wait("process 4711 has it")
        hosts.members[0].fail("DEADLINE_EXCEEDED")
        assert hosts.ends[0].wait().startswith("host 0 cannot use its device: process 4711 has it")


def test_a_host_that_ends_by_itself_keeps_its_exit_code():
    with group() as hosts:
        hosts.members[0].fail("process 4711 has /dev/vfio/0 open", ends_itself=True)
        assert "process 4711" in hosts.ends[0].wait()
        hosts.members[0].await_end()
        assert hosts.ends[1].messages == []
