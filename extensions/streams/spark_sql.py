"""Checks whether Spark accepts stream queries, as their jobs do at the start."""

from contextlib import ExitStack
from typing import TYPE_CHECKING

from cdc.model.errors import LockstepError
from extensions.streams.jobs.plan import StreamQueryPlan
from jobs.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkSql:
    """Starts Spark on this machine for the first query. ``closing`` stops it."""

    def __init__(self, settings: SparkSettings, closing: ExitStack) -> None:
        self._settings = settings
        self._closing = closing
        self._session: SparkSession | None = None

    def examine(self, plan: StreamQueryPlan) -> tuple[list[str], list[str]]:
        """The problems of a stream query, a sentence each; if there are none, the streams that it reads. Raises
        LockstepError when Spark doesn't start.
        """
        from extensions.streams.jobs.planning import examined

        return examined(self._opened().newSession(), plan.name, plan.query, plan.streams)

    def _opened(self) -> "SparkSession":
        """A session in this process, wherever the jobs run. A session that runs already isn't stopped later."""
        if self._session is None:
            # Imported when needed: PySpark takes as long to load as everything else that doctor does.
            from pyspark.sql import SparkSession

            from jobs.spark.session import open_session
            from lockstep.apply import use_java
            from stack.errors import StackError

            running = SparkSession.getActiveSession() or SparkSession._instantiatedSession
            if running is not None:
                return running
            try:
                use_java()
            except StackError as error:
                raise LockstepError(error.message, hint=error.hint) from error
            here = self._settings.model_copy(update={"master": "local[2]", "package": None, "conf": {}})
            self._session = open_session(here, name="lockstep doctor", bulk=False)
            self._closing.callback(self._session.stop)
        return self._session
