"""The configuration with the tables that are captured, as of the last look."""

import threading

from cdc.model.errors import Unavailable
from cdc.pipeline_settings import Pipeline
from lockstep.config import Config


class CapturedTables:
    """A configuration with the tables that are captured, shared by threads: one looks, and the others read. Without
    patterns these are the named tables, until a look finds that capture was started without some."""

    def __init__(self, configured: Config) -> None:
        self._configured = configured
        self._lock = threading.Lock()
        self._known = configured if configured.source.is_resolved else None

    @property
    def known(self) -> Config | None:
        """The configuration as of the last look; None before a look has found the tables."""
        with self._lock:
            return self._known

    def config(self) -> Config:
        """The same. Raises Unavailable before a look has found the tables."""
        known = self.known
        if known is None:
            raise Unavailable(
                "which tables the patterns of source.tables take in isn't known yet",
                hint="Kafka says so, before capture has begun the source does: `lockstep doctor` looks at both",
            )
        return known

    def found(self, pipeline: Pipeline) -> None:
        known = self.known
        if known is None or known.source.table_names != pipeline.source.table_names:
            config = self._configured.capturing(pipeline.source)
            with self._lock:
                self._known = config
