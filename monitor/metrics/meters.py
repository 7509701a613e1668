"""The meters of one process: values go in by name, and Prometheus gets them by their definitions."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric

from monitor.metrics.definitions import DEFINITIONS, SECONDS, Definition, Kind, Part

Labels = Mapping[str, str]
_NONE: Final[Labels] = {}


class Meters:
    """Meters of a part, in a registry that an endpoint serves, beside processor time, memory and open files. A name and
    its labels are those of a definition of this part."""

    def __init__(self, part: Part, added: Iterable[Definition] = ()) -> None:
        """``added`` are those of extensions."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._meters: dict[str, Any] = {
            definition.name: _meter(definition, self.registry)
            for definition in (*DEFINITIONS.values(), *added)
            if definition.part is part
        }

    def add(self, name: str, amount: float, labels: Labels = _NONE) -> None:
        """Increase a counter."""
        self._of(name, labels).inc(amount)

    def set(self, name: str, value: float, labels: Labels = _NONE) -> None:
        self._of(name, labels).set(value)

    def observe(self, name: str, value: float, labels: Labels = _NONE) -> None:
        """Give a histogram one more value."""
        self._of(name, labels).observe(value)

    def ask(self, name: str, value: Callable[[], float]) -> None:
        """Set a gauge by a function that is called at each scrape."""
        self._meters[name].set_function(value)

    def _of(self, name: str, labels: Labels) -> Any:
        meter = self._meters[name]
        return meter.labels(**labels) if labels else meter


class Gauges:
    """Gauges that are complete at each look: what isn't set again is gone, such as a sink that was taken out."""

    def __init__(self, part: Part) -> None:
        self._families = {
            definition.name: GaugeMetricFamily(definition.name, definition.help, labels=definition.labels)
            for definition in DEFINITIONS.values()
            if definition.part is part
        }

    def set(self, name: str, value: float | None, *labels: str) -> None:
        """Set a gauge. An unknown value isn't shown: it must not pass for 0."""
        if value is not None:
            self._families[name].add_metric(labels, value)

    def add(self, definition: Definition, value: float, *labels: str) -> None:
        """Set a gauge that isn't among those of the core."""
        family = GaugeMetricFamily(definition.name, definition.help, labels=definition.labels)
        self._families.setdefault(definition.name, family).add_metric(labels, value)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


def _meter(definition: Definition, registry: CollectorRegistry) -> Any:
    match definition.kind:
        case Kind.COUNTER:
            return Counter(definition.name, definition.help, definition.labels, registry=registry)
        case Kind.GAUGE:
            return Gauge(definition.name, definition.help, definition.labels, registry=registry)
        case Kind.HISTOGRAM:
            return Histogram(definition.name, definition.help, definition.labels, buckets=SECONDS, registry=registry)
