"""Serves the metrics of one process to Prometheus."""

import contextlib
import logging
import socket
import threading
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest, make_asgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from monitor.metrics.definitions import Definition, Part
from monitor.metrics.meters import Gauges, Meters
from monitor.metrics.settings import MetricsSettings, split_address

logger = logging.getLogger("lockstep.metrics")

AGAIN_S: Final = 15.0
"""How often to retry an address that isn't free: about as often as Prometheus scrapes."""


CONNECTIONS_MAX: Final = 64
"""A scraper needs one or two."""


@contextlib.contextmanager
def open_meters(settings: MetricsSettings, part: Part, added: Iterable[Definition] = ()) -> Iterator[Meters | None]:
    """The meters of this process until it ends; None if metrics aren't configured. An address that isn't free is
    retried until the end: no row waits for it. ``added`` are metrics of extensions."""
    address = settings.capture if part is Part.CAPTURE else settings.apply
    if address is None:
        yield None
        return
    meters = Meters(part, added)
    with _served(meters.registry, address, part):
        yield meters


@contextlib.contextmanager
def _served(registry: CollectorRegistry, address: str, part: Part) -> Iterator[None]:
    with contextlib.ExitStack() as closing:
        try:
            closing.enter_context(_listening(registry, address))
        except OSError as error:
            logger.warning(
                "can't listen on %s: %s; the metrics of %s aren't served until it is free, which is tried every"
                " %.0f s; give each pipeline and each process an address of its own in metrics.%s",
                address,
                error.strerror,
                part.value,
                AGAIN_S,
                part.value,
            )
            closing.enter_context(_listening_later(registry, address))
        yield


@contextlib.contextmanager
def _listening(registry: CollectorRegistry, address: str) -> Iterator[None]:
    """Raises OSError if the address isn't free."""
    from monitor.bounded_http import BoundedProtocol, served  # it loads uvicorn, which most processes don't need

    class Scraping(BoundedProtocol):
        connections_max = CONNECTIONS_MAX

    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as server, served(make_asgi_app(registry), server, Scraping):
        logger.info("metrics are served at http://%s:%d/metrics", host, server.getsockname()[1])
        yield


@contextlib.contextmanager
def _listening_later(registry: CollectorRegistry, address: str) -> Iterator[None]:
    ended = threading.Event()

    def try_again() -> None:
        while not ended.wait(AGAIN_S):
            with contextlib.suppress(OSError), _listening(registry, address):
                ended.wait()

    thread = threading.Thread(target=try_again, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Latest(Collector):
    """The gauges of one look."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        return iter(self._gauges)


def exposition(gauges: Gauges) -> bytes:
    """The gauges in Prometheus' text format, for the server that has looked."""
    registry = CollectorRegistry()
    registry.register(_Latest(gauges))
    return generate_latest(registry)
