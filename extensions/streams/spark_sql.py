"""Whether Spark takes stream queries, as their jobs would ask it at their start."""

from contextlib import ExitStack
from typing import TYPE_CHECKING

from cdc.model.errors import LockstepError
from extensions.streams.jobs.plan import StreamQueryPlan
from jobs.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkSql:
    """Starts Spark on this machine for the first query that it is asked about. It ends with ``closing``."""

    def __init__(self, settings: SparkSettings, closing: ExitStack) -> None:
        self._settings = settings
        self._closing = closing
        self._session: SparkSession | None = None

    def examine(self, plan: StreamQueryPlan) -> tuple[list[str], list[str]]:
        """What is wrong in a stream query, a sentence each, and where nothing is, the streams that it reads.

        Raises LockstepError when Spark doesn't start.
        """
        from extensions.streams.jobs.planning import examined

        return examined(self._opened().newSession(), plan.name, plan.query, plan.streams)

    def _opened(self) -> "SparkSession":
        """A session in this process, whatever cluster the jobs run on. One that runs here already isn't stopped."""
        if self._session is None:
            # Imported when needed: to load PySpark takes as long as all that doctor does without it.
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
