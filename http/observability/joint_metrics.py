"""What all front processes have counted together, those that have ended among them: so counters never fall."""

from collections.abc import AsyncIterator

from palladio.http.fronts.peers import METRICS, Peers
from palladio.http.observability.front_counts import FrontCounts
from palladio.http.observability.request_record import FrontMetrics


def share_metrics(own: FrontMetrics, peers: Peers) -> None:
    """From now on other fronts get to know what this one has counted."""

    async def answer(question: bytes) -> AsyncIterator[bytes]:
        yield own.counts().encode()

    peers.answer(METRICS, answer)


async def joint_metrics(own: FrontMetrics, peers: Peers) -> FrontMetrics:
    """Of this moment, to be read only."""
    if peers.is_alone:
        return own
    counted = own.counts().encode()
    joint = own.empty()
    for text in (counted, *await peers.tally(counted)):
        joint.add(FrontCounts.decode(text))
    return joint
