"""What fronts have counted is summed without a gap, whatever becomes of them meanwhile."""

from palladio.front_tally import Tally
from palladio.http.observability.front_counts import FrontCounts, ended_counts
from palladio.runtime.interface.messages import HistogramData

KIND = "metrics"


class Front:
    """Attributes: number: what it counts. ends: called while it is asked."""

    def __init__(self, number, *, is_silent=False):
        self.number, self.is_silent, self.is_serving = number, is_silent, True
        self.ends = None
        self.last = {}

    async def ask_once(self, kind, body):
        if self.is_silent:
            return None
        self.keep(kind, counts(self.number))
        if self.ends is not None:
            self.ends()
        return self.last[kind]

    def keep(self, kind, answer):
        self.last[kind] = answer

    def kept(self, kind):
        return self.last.get(kind)


def counts(number):
    histogram = HistogramData([1.0], [number, 2 * number], 0.5 * number)
    of_routes = [(("/a", "GET"), number)]
    of_answers = [(("/a", "GET", 200), number)]
    same = {"a": number}
    return FrontCounts([histogram], same, of_routes, of_answers, same, same, same, number, number).encode()


def total(answers):
    return sum(FrontCounts.decode(answer).totals["a"] for answer in answers)


def tally_of(*fronts):
    running = dict(enumerate(fronts))
    return running, Tally(KIND, running, ended_counts)


async def test_a_front_that_does_not_answer_has_its_last_answer():
    asker, other = Front(1), Front(10)
    _, tally = tally_of(asker, other)
    assert total(await tally.others(asker, counts(1))) == 10
    other.is_silent = True
    assert total(await tally.others(asker, counts(1))) == 10


async def test_a_front_that_ends_after_its_answer_is_counted_once():
    asker, other, third = Front(1), Front(10), Front(100)
    running, tally = tally_of(asker, other, third)

    def end():
        del running[1]
        tally.end(other)

    other.ends = end
    for _ in range(2):
        assert total(await tally.others(asker, counts(1))) == 110


async def test_the_answers_of_fronts_that_have_ended_are_one():
    asker = Front(0)
    running, tally = tally_of(asker)
    for number in (1, 10, 100):
        running[number] = Front(number)
        await tally.others(asker, counts(0))
        tally.end(running.pop(number))
    (answer,) = await tally.others(asker, counts(0))
    ended = FrontCounts.decode(answer)
    assert ended.histograms == [HistogramData([1.0], [111, 222], 55.5)]
    assert (ended.http_requests, ended.http_responses) == ([(("/a", "GET"), 111)], [(("/a", "GET", 200), 111)])
    assert ended.totals == ended.warnings == ended.batch_lines == ended.database_failures == {"a": 111}
    assert (ended.http_active, ended.live_batches) == (0, 0)


async def test_a_front_that_asked_and_ended_is_counted_too():
    asker, other = Front(1), Front(10)
    running, tally = tally_of(asker, other)
    await tally.others(other, counts(12))
    other.is_silent = True
    tally.end(running.pop(1))
    assert total(await tally.others(asker, counts(1))) == 12
