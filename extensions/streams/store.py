"""A stream query's result for commands, as a ``lockstep.added_stores.AddedStore``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from extensions.streams.configured import queries_of
from jobs.settings import SparkSettings
from lockstep.added_stores import RetriedRows
from lockstep.config import Config
from sinks.registry import SinkSettings

if TYPE_CHECKING:
    from extensions.streams.jobs.thread import StreamQueryJob
    from jobs.dead_letters.record import DeadLetter


class StreamQueryStore:
    kind: Final = "stream query"
    section: Final = "stream_queries"
    discarded: Final = "Its webhook never gets these rows, unless a newer build of the result has them"

    def __init__(self, config: Config, name: str) -> None:
        self._config = config
        self._name = name

    @property
    def settings(self) -> SinkSettings:
        return queries_of(self._config)[self._name].sink

    @property
    def commands(self) -> str:
        name = self._name
        return (
            f"`lockstep streams list` shows it, `lockstep streams rebuild {name}` builds its result again, and"
            f" `lockstep apply {name}` runs it"
        )

    def job(self, spark: SparkSettings, *, once: bool) -> "StreamQueryJob":
        from extensions.streams.jobs.thread import StreamQueryJob  # it imports PySpark
        from extensions.streams.queries import stream_query_plan

        return StreamQueryJob(stream_query_plan(self._config, self._name, spark=spark, once=once))

    def retry(self, chosen: "Sequence[DeadLetter]", *, say: Callable[[str], None]) -> RetriedRows:
        from extensions.streams.retry import post_again

        return post_again(self._config, self._name, chosen, say=say)

    @contextmanager
    def closing(self, *, say: Callable[[str], None]) -> Iterator[None]:
        """Takes the turn to post: `lockstep rejections retry` would otherwise post rows that it found open."""
        if queries_of(self._config)[self._name].webhook is None:
            yield
            return
        from extensions.streams.jobs.posting_turn import posting_turns
        from extensions.streams.queries import stream_query_plan

        with posting_turns(stream_query_plan(self._config, self._name), say=say) as turn:
            turn.take()
            yield


def stores(config: Config) -> Mapping[str, StreamQueryStore]:
    return {name: StreamQueryStore(config, name) for name in queries_of(config)}
