"""The last errors: which are kept, who sees them."""

import asyncio

from palladio.http.observability.records.recent_errors import MAX_MESSAGE, MAX_NOTES, RecentErrors
from palladio.http.observability.records.request_record import Origin
from palladio.http.security.callers import ADMIN, Caller
from palladio.http.wire.errors import ErrorBody, HttpError
from palladio.runtime.interface.errors import EngineDeadError, InvalidRequestError


def scope(shown_id: str, owner: str = "") -> dict:
    state = {"shown_id": shown_id, "caller": Caller(owner)}
    return {"method": "POST", "path": "/v1/completions", "state": state}


def origin(shown_id: str, owner: str = "") -> Origin:
    return Origin("/v1/completions", shown_id, {}, owner=owner)


def test_a_request_that_fails_is_noted_once_and_the_clients_own_faults_are_not() -> None:
    errors = RecentErrors(now=lambda: 7.0)
    errors.note_failure(origin("a"), EngineDeadError("killed"))
    errors.note_answer(scope("a"), ErrorBody(503, "killed"))
    errors.note_answer(scope("b"), ErrorBody(404, "no such model"))
    errors.note_failure(origin("c"), InvalidRequestError("too long"))
    errors.note_failure(origin("d"), HttpError(ErrorBody(499, "gone")))
    errors.note_failure(origin("e"), asyncio.CancelledError())
    errors.note_failure(origin("f"), ZeroDivisionError("secret"))
    newest, oldest = errors.seen_by(Caller())
    assert oldest == {
        "time": 7.0,
        "where": "POST /v1/completions",
        "message": "killed",
        "status": 503,
        "request_id": "a",
        "count": 1,
    }
    assert (newest["status"], "secret" in newest["message"]) == (500, False)


def test_equal_errors_are_one_and_there_are_never_many() -> None:
    errors = RecentErrors()
    for number in range(500):
        errors.note_answer(scope(f"a{number}"), ErrorBody(503, "x" * 10_000))
    (only,) = errors.seen_by(Caller())
    assert (only["count"], only["request_id"], len(only["message"])) == (500, "a499", MAX_MESSAGE)
    for number in range(500):
        errors.note_answer(scope(f"b{number}"), ErrorBody(503, f"{number}"))
    found = errors.seen_by(Caller())
    assert [note["message"] for note in found] == [f"{499 - number}" for number in range(MAX_NOTES)]


def test_errors_of_requests_have_owners_and_the_engines_are_everybodys() -> None:
    errors = RecentErrors()
    errors.note_failure(origin("a", "alice"), EngineDeadError("one"))
    errors.note_failure(origin("b", "bob"), EngineDeadError("one"))
    errors.note_engine("signal 9")
    assert [note["request_id"] for note in errors.seen_by(Caller("alice", "own"))] == ["", "a"]
    assert [note["request_id"] for note in errors.seen_by(Caller(ADMIN, "all"))] == ["", "b", "a"]
    assert not any("owner" in note for note in errors.seen_by(Caller()))
