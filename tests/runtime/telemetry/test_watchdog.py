"""The watchdog: what it calls a hang, what it says of one, and what it leaves alone."""

import json
import re
import stat
import time

import pytest

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.calls import Shutdown
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.engine_loop import run_engine
from palladio.runtime.telemetry.activity import Activity
from palladio.runtime.telemetry.watchdog import Watchdog
from tests.runtime.fake_core import FakeEngineCore
from tests.runtime.process.test_engine_loop import ListInbox

TIMEOUT = 0.3


def test_activity():
    activity = Activity()
    assert str(activity.now).startswith("waiting for requests, since ")
    activity.handle_messages()
    activity.begin_step()
    step = activity.now
    assert re.fullmatch(r"step 1, since \d\d:\d\d:\d\d", str(step))
    time.sleep(0.01)
    with activity.compiling("decode[bs=8]"):
        assert str(activity.now).startswith("compiling decode[bs=8] for step 1, since ")
    with activity.writing_profile():
        assert str(activity.now).startswith("writing a profile after step 1, since ")
    assert (activity.now.kind, activity.now.num_steps) == ("step", 1)
    assert activity.now.since > step.since  # the step has all its time again
    activity.handle_messages()
    assert str(activity.now).startswith("messages after step 1, since ")
    activity.rest()
    activity.begin_step()
    assert activity.now.num_steps == 2


def test_a_hang_is_told_and_nothing_is_killed(tmp_path, caplog, capfd):
    """As it is offline: the process is the user's."""
    activity = Activity()
    activity.begin_step()
    with Watchdog(activity, TIMEOUT, tmp_path):
        time.sleep(3.5 * TIMEOUT)
        activity.begin_step()
        time.sleep(0.5 * TIMEOUT)
    lines = [message for message in caplog.messages if "no step finished" in message]
    assert 2 <= len(lines) <= 3
    assert lines[0].startswith(f"no step finished within {TIMEOUT:g} s (--watchdog-timeout): the engine hangs in step ")
    (stacks,) = tmp_path.iterdir()
    assert stat.S_IMODE(stacks.stat().st_mode) == 0o600
    assert stacks.read_text().startswith(lines[0])
    assert "test_watchdog.py" in stacks.read_text()
    shown = capfd.readouterr().err
    assert shown.count("test_a_hang_is_told_and_nothing_is_killed") == 1


def test_a_hang_ends_what_is_to_be_ended(tmp_path, caplog):
    ended = []
    activity = Activity()
    activity.handle_messages()
    watchdog = Watchdog(activity, TIMEOUT, tmp_path / "none", ended.append)
    with watchdog:
        deadline = time.monotonic() + 30
        while not ended and time.monotonic() < deadline:
            time.sleep(0.1 * TIMEOUT)
    assert len(ended) == 1
    assert "the engine hangs in messages after step 0, since" in ended[0]
    assert "Cannot write the stack traces" in caplog.text


def test_rest_progress_and_compiles_are_no_hangs(caplog):
    ended = []
    activity = Activity()
    with Watchdog(activity, TIMEOUT, None, ended.append):
        activity.rest()
        time.sleep(1.5 * TIMEOUT)
        for _ in range(15):
            activity.begin_step()
            time.sleep(0.1 * TIMEOUT)
        with activity.compiling("decode[bs=8]"):
            _wait_for_text("Still compiling decode[bs=8] after", caplog)
        with activity.writing_profile():
            _wait_for_text("Still writing a profile after", caplog)
        with activity.loading_weights():
            _wait_for_text("Still loading weights after", caplog)
        time.sleep(0.3 * TIMEOUT)
    assert ended == []


def _wait_for_text(text: str, caplog: pytest.LogCaptureFixture) -> None:
    deadline = time.monotonic() + 20
    while text not in caplog.text:
        assert time.monotonic() < deadline, text
        time.sleep(0.05)


def test_the_loop_says_what_it_is_at():
    seen = []

    class Core(FakeEngineCore):
        def step(self):
            seen.append(self.activity.now)
            return super().step()

        def add(self, request):
            seen.append(self.activity.now)
            super().add(request)

    class Inbox(ListInbox):
        def wait(self):
            seen.append(core[0].activity.now)
            return super().wait()

    core = []

    def create(config, on_progress, on_fatal):
        core.append(Core(config))
        return core[0]

    config = EngineConfig.from_flags({"model_path": "x", "json_model_override_args": json.dumps({})})
    request = GenerationRequest("a", [5], SamplingParams(max_tokens=2, seed=1), (), time.time())
    run_engine(create, config, Inbox([request, None, None, Shutdown()]), lambda message: None)
    assert [(doing.kind, doing.num_steps) for doing in seen] == [
        ("idle", 0),
        ("messages", 0),
        ("step", 1),
        ("step", 2),
        ("idle", 2),
    ]


def test_a_soft_limit_only_tells(caplog: pytest.LogCaptureFixture) -> None:
    """The loop goes on: the hard one, which ends it, has not come."""
    ended = []

    class Slow(FakeEngineCore):
        def step(self):
            time.sleep(3 * TIMEOUT)
            return super().step()

    flags = {"model_path": "x", "json_model_override_args": json.dumps({}), "watchdog_timeout": 60.0}
    config = EngineConfig.from_flags({**flags, "soft_watchdog_timeout": TIMEOUT})
    request = GenerationRequest("a", [5], SamplingParams(max_tokens=1, seed=1), (), time.time())
    inbox = ListInbox([request, None, None, Shutdown()])
    run_engine(lambda config, on_progress, on_fatal: Slow(config), config, inbox, lambda _: None, ended.append)
    assert ended == []
    (line, *_) = [message for message in caplog.messages if "no step finished" in message]
    assert line.startswith(
        f"no step finished within {TIMEOUT:g} s (--soft-watchdog-timeout): the engine hangs in step 1"
    )
