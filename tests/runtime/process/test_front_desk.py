"""What an engine before several fronts sends to which of them."""

import dataclasses
import uuid

import pytest
import zmq

from palladio.runtime.interface.front_number import PARENT, first_call, front_of_call, front_of_id, id_mark
from palladio.runtime.interface.generation_request import GenerationRequest, RequestOptions, SamplingParams
from palladio.runtime.interface.messages import (
    AbortRequests,
    ControlReply,
    EngineBusy,
    EngineFailed,
    GetStats,
    StepOutputs,
)
from palladio.runtime.interface.outputs import FinishReason, TokenOutput
from palladio.runtime.interface.step_tokens import PlainTokens
from palladio.runtime.process.codec import address, from_engine_codec
from palladio.runtime.process.front_desk import FrontDesk, FrontsInbox, front_socket


class Desk:
    def __init__(self, folder):
        self.context = zmq.Context()
        self.told = []
        self.desk = FrontDesk(self.context, folder, self.told.append, linger=0)
        self._sockets = {}
        for number in (1, 2, 300):
            self._sockets[number] = self.context.socket(zmq.PULL)
            self._sockets[number].bind(address(folder, front_socket(number)))

    def add(self, *engine_ids):
        for engine_id in engine_ids:
            assert self.desk.take(request(engine_id)) is not None

    def heard(self, number, wait=1000):
        if not self._sockets[number].poll(wait):
            return None
        return from_engine_codec().decode(self._sockets[number].recv())


def request(engine_id):
    return GenerationRequest(engine_id, [1], SamplingParams(seed=1))


@pytest.fixture
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("s")
    desk = Desk(folder)
    yield desk
    desk.desk.close()
    desk.context.destroy(linger=0)


def outputs(*engine_ids, finish=None):
    return StepOutputs([TokenOutput(engine_id, [7], finish=finish) for engine_id in engine_ids])


def ids(message):
    return [output.request_id for output in message.outputs]


def test_numbers_are_told_by_ids_whatever_a_client_calls_its_request():
    for name in ("x", "a~b", "~2.0", "1.5", f"{uuid.uuid4()}-0"):
        assert front_of_id(f"{name}~{id_mark(300)}1f") == 300
        assert front_of_id(f"{name}~{id_mark(PARENT)}1f") == PARENT
    assert [front_of_call(first_call(front) + step) for front in (0, 1, 300) for step in (-1, 0, 10**9)] == [
        *(0, 0, 0),
        *(1, 1, 1),
        *(300, 300, 300),
    ]


def test_a_step_is_divided_and_answers_go_to_who_asked(desk):
    desk.add("a~1.0", "b~2.0", "c~1.1", "d~12c.0")
    desk.desk.emit(outputs("a~1.0", "b~2.0", "c~1.1", "d~12c.0"))
    assert [ids(desk.heard(number)) for number in (1, 2, 300)] == [["a~1.0", "c~1.1"], ["b~2.0"], ["d~12c.0"]]
    reply = ControlReply(first_call(2) + 5, ok=True)
    desk.desk.emit(reply)
    assert desk.heard(2) == reply
    for message in (ControlReply(3, ok=True), EngineFailed("broken", config=False)):
        desk.desk.emit(message)
        assert desk.told.pop() == message
    desk.desk.emit(EngineBusy("compiling"))
    assert [desk.heard(number) for number in (1, 2, 300)] == [EngineBusy("compiling")] * 3
    assert desk.told == [EngineBusy("compiling")]


def test_plain_tokens_are_divided_and_keep_their_place(desk):
    desk.add("a~1.0", "b~2.0", "c~1.1")
    plain = [PlainTokens.of(["a~1.0", "gone~1.9", "b~2.0"], [[1], [2], [3, 4]], 1), PlainTokens.of(["c~1.1"], [[5]], 2)]
    first, last = TokenOutput("c~1.1", [6]), TokenOutput("a~1.0", [7], finish=FinishReason("length"))
    desk.desk.emit(StepOutputs([first, last], plain))
    assert desk.heard(1) == StepOutputs(
        [first, last], [PlainTokens.of(["a~1.0"], [[1]], 1), PlainTokens.of(["c~1.1"], [[5]], 2)]
    )
    assert desk.heard(2) == StepOutputs([], [PlainTokens.of(["b~2.0"], [[3, 4]], 0)])


def test_what_has_ended_is_sent_to_nobody(desk):
    desk.add("a~1.0", "b~1.1")
    desk.desk.emit(outputs("a~1.0", finish=FinishReason("length")))
    assert desk.desk.take(AbortRequests(["b~1.1"])) == AbortRequests(["b~1.1"])
    desk.desk.emit(outputs("a~1.0", "b~1.1"))
    desk.add("c~1.2")
    desk.desk.emit(outputs("c~1.2"))
    assert [ids(desk.heard(1)) for _ in "12"] == [["a~1.0"], ["c~1.2"]]


def test_a_name_that_runs_in_one_front_is_refused_in_others_until_it_has_ended(desk):
    """Whatever its samples are called, and whoever retries it."""
    desk.add("team/a~1.0-0", "team/a~1.1-1", "a-0~2.0")
    again = dataclasses.replace(request("team/a~2.1"), options=RequestOptions(owner="team"))
    assert desk.desk.take(again) is None
    (refused,) = desk.heard(2).outputs
    assert (refused.request_id, refused.finish.status, refused.finish.param) == ("team/a~2.1", 400, "rid")
    assert refused.finish.message == "a request with id 'a' is already running"
    desk.desk.emit(outputs("team/a~1.0-0", "team/a~2.1", finish=FinishReason("length")))
    assert ids(desk.heard(1)) == ["team/a~1.0-0"], "one sample goes on, and the refused one has never begun"
    assert desk.desk.take(again) is None
    assert desk.desk.take(AbortRequests(["team/a~1.1-1"])) is not None
    desk.add("team/a~2.2", "team/a~2.3")
    assert desk.desk.take(AbortRequests([], front=2)) == AbortRequests(["a-0~2.0", "team/a~2.2", "team/a~2.3"])
    desk.add("team/a~1.2", "a-0~12c.0")


def test_a_front_that_has_ended_takes_all_its_requests_along_and_those_that_come_late(desk):
    desk.add("a~1.0", "b~2.0", "c~1.1")
    desk.desk.emit(outputs("a~1.0"))
    desk.heard(1)
    assert desk.desk.take(AbortRequests([], front=1)) == AbortRequests(["a~1.0", "c~1.1"])
    assert desk.desk.take(request("late~1.2")) is None
    desk.desk.emit(outputs("a~1.0", "b~2.0"))
    desk.desk.emit(ControlReply(first_call(1), ok=True))
    assert ids(desk.heard(2)) == ["b~2.0"]
    assert desk.heard(1, wait=50) is None

    class Inbox:
        def __init__(self, *messages):
            self.messages = list(messages)

        def get(self, seconds=0.0):
            return self.messages.pop(0) if self.messages else None

        wait = get

    messages = request("later~1.3"), GetStats(1)
    assert FrontsInbox(Inbox(*messages), desk.desk).get() is None
    assert FrontsInbox(Inbox(*messages), desk.desk).wait() == GetStats(1)


def test_every_part_of_a_step_is_divided():
    """A part of StepOutputs that the desk does not know of would get to nobody."""
    assert [field.name for field in dataclasses.fields(StepOutputs)] == ["outputs", "plain"]
