"""--max-connections over several front processes."""

from palladio.http.security.connection_limits import COUNTS_BYTES, NUM_SPARE, ConnectionCounts, ConnectionLimits


def test_connections_of_all_fronts_count():
    memory = memoryview(bytearray(2 * COUNTS_BYTES))
    first, second = (ConnectionLimits(1.0, 1.0, 3, ConnectionCounts(memory, slot)) for slot in range(2))
    places = [first.enter(), second.enter(), second.enter()]
    assert not any(place.is_spare for place in places)
    assert first.enter().is_spare
    assert second.enter().is_spare
    spares = [first.enter() for _ in range(NUM_SPARE - 2)]
    assert not any(place.is_too_much for place in spares)
    assert second.enter().is_too_much
    second.leave(places[2])
    assert not first.enter().is_spare


def test_a_front_that_ended_has_no_connections():
    memory = memoryview(bytearray(2 * COUNTS_BYTES))
    first, second = (ConnectionLimits(1.0, 1.0, 1, ConnectionCounts(memory, slot)) for slot in range(2))
    assert not first.enter().is_spare
    memory[:COUNTS_BYTES] = bytes(COUNTS_BYTES)  # as its parent does
    assert not second.enter().is_spare
