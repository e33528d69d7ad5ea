"""What all front processes have counted together, those that have ended among them: so counters never fall."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from palladio.http.fronts.peers import Peers
from palladio.http.observability.front_counts import FrontCounts
from palladio.http.observability.request_record import FrontMetrics

_METRICS: Final = "metrics"  # kind of the question; the parent keeps the last answers


def share_metrics(own: FrontMetrics, peers: Peers) -> None:
    """From now on other fronts get to know what this one has counted."""

    async def answer(question: bytes) -> AsyncIterator[bytes]:
        yield _encode(own)

    peers.answer(_METRICS, answer)


async def joint_metrics(own: FrontMetrics, peers: Peers) -> FrontMetrics:
    """Of this moment, to be read only."""
    if peers.is_alone:
        return own
    counted = _encode(own)
    joint = own.empty()
    for text in (counted, *await peers.ask_others(_METRICS, counted)):
        joint.add(_decode(text))
    for text in await peers.departed(_METRICS):
        joint.add(dataclasses.replace(_decode(text), http_active=0, live_batches=0))
    return joint


def _encode(metrics: FrontMetrics) -> bytes:
    counts = FrontCounts(
        [histogram.data() for histogram in metrics.histograms],
        dict(metrics.totals),
        list(metrics.http_requests.items()),
        list(metrics.http_responses.items()),
        dict(metrics.warnings),
        dict(metrics.batch_lines),
        dict(metrics.database_failures),
        metrics.http_active,
        metrics.live_batches,
    )
    return msgspec.msgpack.encode(counts)


def _decode(text: bytes) -> FrontCounts:
    return msgspec.msgpack.decode(text, type=FrontCounts)
