"""Jobs, and builds of generations, in the tests' own process and its one Spark, where they start at once."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from pyspark.sql import SparkSession

from cdc.model.errors import LockstepError
from lockstep.config import Config
from lockstep.rebuild.outcome import Observer, Rebuilt
from lockstep.rebuild.rebuild import rebuild
from tests.job_reports import Reports, seen


class _Here(Reports):
    """Something that runs in a thread until it is done or asked to stop."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._stop = threading.Event()
        self._code: int | None = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> int:
        """Returns the exit code."""
        raise NotImplementedError

    def _work(self) -> None:
        code = 1
        try:
            code = self._run()
        except Exception as error:
            self.error = error
            self.add({"report": "Ended", "error": f"{type(error).__name__}: {error}"})
        finally:
            self._code = code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def poll(self) -> int | None:
        """The exit code once it has ended, else None."""
        return None if self._thread.is_alive() else self._code

    def ask_to_stop(self) -> None:
        """Returns at once."""
        self._stop.set()

    def wait_ended(self, timeout_s: float) -> int:
        """The exit code, once it has ended."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"still running after {timeout_s:.0f} s: {self.output()}"
        assert self._code is not None
        return self._code

    def close(self) -> None:
        """Stop it if it still runs. Ignores its error."""
        self._stop.set()
        self._thread.join(120)


class Job(_Here):
    """A job that applies. ``run`` is ``run_sinks`` or ``apply_sinks`` with everything but its last arguments."""

    def __init__(self, spark: SparkSession, run: Callable[..., int]) -> None:
        self._spark = spark
        self._sinks = run
        super().__init__("job")

    def _run(self) -> int:
        return self._sinks(report=lambda report: self.add(seen(report)), stop=self._stop, opened=self._spark)

    def finish(self, timeout_s: float = 300) -> int:
        code = self.wait_ended(timeout_s)
        if self.error is not None:
            raise self.error
        return code

    def stop(self) -> int:
        self.ask_to_stop()
        return self.finish()


class Rebuild(_Here):
    """A ``rebuild``. Each sentence of it is a report ``Said`` with its ``text``."""

    def __init__(
        self, spark: SparkSession, config: Config, sink: str, *, switch_over: bool = False, **options: Any
    ) -> None:
        self._spark = spark
        self._config = config
        self._sink = sink
        self._options = {"switch_over": switch_over, **options}
        self._result: Rebuilt | None = None
        super().__init__(f"rebuild-{sink}")

    def _run(self) -> int:
        observer = Observer(
            say=lambda text: self.add({"report": "Said", "text": text}),
            progress=lambda _: None,
            compared=lambda _: None,
            report=lambda report: self.add(seen(report)),
        )
        self._result = rebuild(
            self._config, self._sink, **self._options, stop=self._stop, observer=observer, opened=self._spark
        )
        return 0 if self._result.report.is_equal else 1

    @property
    def said(self) -> str:
        """All its sentences, one a line."""
        return "\n".join(report["text"] for report in list(self.reports) if report["report"] == "Said")

    def wait_says(self, words: str) -> None:
        self.wait_until(lambda report: words in report.get("text", ""))

    def finish(self, timeout_s: float = 300) -> Rebuilt:
        self.wait_ended(timeout_s)
        if self.error is not None:
            raise self.error
        assert self._result is not None
        return self._result

    def failed(self) -> LockstepError:
        self.wait_ended(300)
        assert isinstance(self.error, LockstepError), self.error or self._result
        return self.error
