"""FrontCounts: what one front process has counted, on its way to another one that tells of all of them."""

import dataclasses

from palladio.runtime.interface.messages import HistogramData


@dataclasses.dataclass(frozen=True, slots=True)
class FrontCounts:
    """FrontMetrics as values; see there.

    Attributes:
        histograms: in the order of FrontMetrics.histograms.
    """

    histograms: list[HistogramData]
    totals: dict[str, int]
    http_requests: list[tuple[tuple[str, str], int]]
    http_responses: list[tuple[tuple[str, str, int], int]]
    warnings: dict[str, int]
    batch_lines: dict[str, int]
    database_failures: dict[str, int]
    http_active: int
    live_batches: int
