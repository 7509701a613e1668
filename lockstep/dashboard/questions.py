"""Answers that take longer than a look. They are refreshed on demand, and at most every few seconds for all pages."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from cdc.kafka.control_topics import read_schema_records
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import SCHEMA, control_topic
from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.model.table import TableName
from cdc.pipeline_settings import Pipeline
from jobs.dead_letters.record import DeadLetter
from lockstep.config import Config
from lockstep.console import start_command
from lockstep.dashboard import documents
from lockstep.dashboard.model import Copies, Findings, PipelineState, Rejections, Schemas, SinkDetail, Tables
from lockstep.dashboard.sampler import Sampler, now_ms
from monitor.background_question import Remembered
from monitor.copies import CopyReport, CopyStatusCollector

if TYPE_CHECKING:
    from lockstep.rejections.open_records import OpenRecords

_FINDINGS_S: Final = 30.0
_REJECTIONS_S: Final = 5.0
_SHAPES_S: Final = 10.0
_COPIES_S: Final = 2.0
_DOCTOR_S: Final = 60.0


class Questions:
    """All of these answers. Each raises LockstepError if a server doesn't answer."""

    def __init__(self, config: Config, path: Path, sampler: Sampler) -> None:
        self._config = config
        self._path = path
        self._sampler = sampler
        self._tables = sampler.tables
        self._collector: tuple[Pipeline, CopyStatusCollector] | None = None
        self._open_records: tuple[Config, OpenRecords] | None = None
        self.findings = Remembered(self._ask_findings, seconds=_FINDINGS_S)
        self._copies: Remembered[CopyReport] = Remembered(self._ask_copies, seconds=_COPIES_S)
        self._open = Remembered(self._ask_rejections, seconds=_REJECTIONS_S)
        self._partitions: Remembered[Mapping[str, int]] = Remembered(self._ask_partitions, seconds=_SHAPES_S)
        self._shapes = Remembered(
            lambda: read_schema_records(config.kafka.client(), config.pipeline.name), seconds=_SHAPES_S
        )

    def state(self) -> PipelineState:
        """The newest state. Raises Unavailable before the first look is over."""
        if self._sampler.state is None:
            raise Unavailable("the pipeline is looked at for the first time just now")
        return self._sampler.state

    def tables(self) -> Tables:
        stages = {table["table"]: table["stage"] for table in self._copies().to_json()["tables"]}
        partitions = self._partitions()
        # Before capture has run for the first time there are none.
        records = self._shapes() if control_topic(self._config.pipeline.name, SCHEMA) in partitions else []
        return documents.tables(self._tables.config().topics(), self._sampler.rates, stages, partitions, records)

    def _ask_partitions(self) -> Mapping[str, int]:
        topics = self._tables.config().topics().values()
        schemas = control_topic(self._config.pipeline.name, SCHEMA)
        return TopicAdmin(self._config.kafka.client()).partition_counts([*topics, schemas])

    def schemas(self, text: str) -> Schemas:
        """The shapes of a captured table. Raises ConfigurationError for any other."""
        return documents.schemas(self.table(text), self._shapes())

    def table(self, text: str) -> TableName:
        """The name of a captured table. Raises ConfigurationError for any other: no other text gets into a command."""
        names = self._tables.config().source.table_names
        name = next((name for name in names if str(name) == text), None)
        if name is None:
            raise ConfigurationError("no such table is captured", hint="`lockstep.toml` names those that are")
        return name

    def sink(self, name: str) -> str:
        """The name of a sink. Raises ConfigurationError for any other."""
        if name in self._config.added_stores:
            raise self._config.not_found("sink", name)
        if name not in self._config.sinks:
            raise ConfigurationError("there is no such sink", hint="`lockstep.toml` names those that there are")
        return name

    def sink_detail(self, name: str) -> SinkDetail:
        """One sink. Raises ConfigurationError for an unknown name."""
        return documents.sink_detail(self.sink(name), self.state(), self._sampler.last_hour(name))

    def copies(self) -> Copies:
        return documents.copies(self._copies().to_json(), self.state(), self._sampler.ends)

    def rejections(self) -> Rejections:
        named = {topic: name for name, topic in self._tables.config().topics().items()}
        return documents.rejections(self._open(), named)

    def close(self) -> None:
        if self._collector is not None:
            self._collector[1].close()

    def _ask_copies(self) -> CopyReport:
        pipeline = self._tables.config().as_pipeline()
        if self._collector is None or self._collector[0] != pipeline:  # tables have joined
            self.close()
            self._collector = pipeline, CopyStatusCollector(pipeline)
        return self._collector[1].collect()

    def _ask_findings(self) -> Findings:
        """Runs doctor as a process of its own: what it needs would stay in our memory."""
        pipe = subprocess.PIPE
        with start_command("doctor", "--json", config=self._path, stdout=pipe, stderr=pipe) as doctor:
            try:
                output, errors = doctor.communicate(timeout=_DOCTOR_S)
            except subprocess.TimeoutExpired:
                doctor.kill()
                raise Unavailable(f"doctor hasn't answered for {_DOCTOR_S:.0f} s") from None
        try:
            return documents.findings(orjson.loads(output), checked_ms=now_ms())
        except orjson.JSONDecodeError:
            said = errors.decode(errors="replace").strip()[-500:]
            raise LockstepError(f"doctor couldn't look: {said}", hint="run `lockstep doctor`") from None

    def _ask_rejections(self) -> list[DeadLetter]:
        config = self._tables.config()
        if self._open_records is None or self._open_records[0] is not config:  # tables have joined
            from lockstep.rejections.open_records import OpenRecords  # takes memory, and few ask

            self._open_records = config, OpenRecords(config)
        return self._open_records[1].read(None)[0]
