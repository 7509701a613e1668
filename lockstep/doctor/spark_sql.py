"""Whether Spark takes the expressions of sinks, as their jobs would ask it at their start."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cdc.model.errors import LockstepError
from cdc.model.table import Table, TableName
from jobs.settings import SparkSettings
from jobs.streams.plan import StreamQueryPlan
from sinks.table_settings import Expressions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkSql:
    """Starts Spark on this machine for the first expressions that it is asked about. It ends with ``closing``."""

    def __init__(self, settings: SparkSettings, closing: ExitStack) -> None:
        self._settings = settings
        self._closing = closing
        self._session: SparkSession | None = None

    def problems(self, expressions: Mapping[TableName, Expressions], tables: Sequence[Table]) -> list[str]:
        """What is wrong in them, a sentence each. Raises LockstepError when Spark doesn't start."""
        wanted = [table for table in tables if table.name in expressions]
        if not wanted:
            return []
        # Imported when needed: to load PySpark takes as long as all that doctor does without it.
        from jobs.spark.computed_columns import TablePlan, expression_problems

        return expression_problems(
            self._opened(), {table.name: TablePlan(table, expressions[table.name]) for table in wanted}
        )

    def examine_stream_query(self, plan: StreamQueryPlan) -> tuple[list[str], list[str]]:
        """What is wrong in a stream query, a sentence each, and where nothing is, the streams that it reads.

        Raises LockstepError when Spark doesn't start.
        """
        from jobs.streams.frames import examined

        return examined(self._opened().newSession(), plan.name, plan.query, plan.streams)

    def _opened(self) -> "SparkSession":
        if self._session is None:
            from jobs.spark.computed_columns import session_here
            from lockstep.apply import with_java
            from stack.errors import StackError

            try:
                settings = with_java(self._settings)
            except StackError as error:
                raise LockstepError(error.message, hint=error.hint) from error
            self._session = self._closing.enter_context(session_here(settings, bulk=False))
        return self._session
