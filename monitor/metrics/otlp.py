"""The same metrics for an OpenTelemetry collector. Only imported where one is set: its packages are an extra."""

import logging
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from monitor.metrics.definitions import DEFINITIONS, SECONDS, Kind, Part
from monitor.metrics.meters import Labels
from monitor.metrics.settings import MetricsSettings

_EVERY_MS = 15_000
_CLOSE_MS = 3_000
"""How long the last delivery may take: a collector that is away must not hold up an end."""


class OtlpMeters:
    """Meters of a part, which are delivered again and again until they are closed. A collector that is down costs
    what it would have got, and nothing else.
    """

    def __init__(self, settings: MetricsSettings, part: Part, pipeline: str) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it says each time that a collector is down
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(endpoint=settings.otlp_endpoint, timeout=5),
            export_interval_millis=_EVERY_MS,
        )
        self._provider = MeterProvider(
            [reader],
            resource=Resource.create(
                {"service.name": "lockstep", "service.instance.id": part.value, "lockstep.pipeline": pipeline}
            ),
            shutdown_on_exit=False,
        )
        meter = self._provider.get_meter("lockstep")
        make = {Kind.COUNTER: meter.create_counter, Kind.GAUGE: meter.create_gauge}
        self._instruments: dict[str, Any] = {}
        for definition in DEFINITIONS.values():
            if definition.part is not part:
                continue
            if definition.kind is Kind.HISTOGRAM:
                self._instruments[definition.name] = meter.create_histogram(
                    definition.name,
                    unit=definition.unit,
                    description=definition.help,
                    explicit_bucket_boundaries_advisory=SECONDS,
                )
            else:
                self._instruments[definition.name] = make[definition.kind](
                    definition.name, unit=definition.unit, description=definition.help
                )

    def add(self, name: str, amount: float, labels: Labels = {}) -> None:  # noqa: B006  never changed
        self._instruments[name].add(amount, dict(labels))

    def set(self, name: str, value: float, labels: Labels = {}) -> None:  # noqa: B006  never changed
        self._instruments[name].set(value, dict(labels))

    def observe(self, name: str, value: float, labels: Labels = {}) -> None:  # noqa: B006  never changed
        self._instruments[name].record(value, dict(labels))

    def close(self) -> None:
        """Deliver what there is, for some seconds at most."""
        self._provider.shutdown(timeout_millis=_CLOSE_MS)
