"""Metric: a row of a table of metrics, and its form for Prometheus."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, Literal, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from palladio.runtime.interface.messages.engine_stats import HistogramData

T = TypeVar("T")
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float | HistogramData]]

_FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}


@dataclasses.dataclass(frozen=True, slots=True)
class Metric(Generic[T]):
    """One metric: a row of a table.

    Attributes:
        name: without `_total`.
        samples: reads the values, each with its labels beside the model's name; None: there is no such metric now.
    """

    kind: Literal["gauge", "counter", "histogram"]
    name: str
    text: str
    samples: Callable[[T], Samples | None]

    def family(self, source: T, common: Labels) -> Iterator[Family]:
        """Read the metric from its source.

        Args:
            common: labels of all samples.
        """
        samples = self.samples(source)
        if samples is None:
            return
        family: Family = _FAMILIES[self.kind](self.name, self.text)
        for labels, value in samples:
            if isinstance(value, HistogramData):
                _add_histogram(family, {**common, **labels}, value)
            else:
                suffix = "_total" if self.kind == "counter" else ""
                family.add_sample(self.name + suffix, {**common, **labels}, float(value))
        yield family


def _add_histogram(family: Family, labels: dict[str, str], data: HistogramData) -> None:
    bounds = [*(repr(float(bound)) for bound in data.bounds), "+Inf"]
    reached = list(itertools.accumulate(data.counts))
    for bound, count in zip(bounds, reached, strict=True):
        family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
    family.add_sample(f"{family.name}_count", labels, reached[-1])
    family.add_sample(f"{family.name}_sum", labels, data.total)


def families(metrics: Iterable[Metric[T]], source: T | None, labels: Labels) -> Iterator[Family]:
    if source is not None:
        for metric in metrics:
            yield from metric.family(source, labels)


def one(read: Callable[[T], float | HistogramData]) -> Callable[[T], Samples]:
    """The samples of a metric that is a single value."""
    return lambda source: [({}, read(source))]
