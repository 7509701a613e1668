"""The command's side of a build's job in the driver: requests it, gives signs of life, and sees how it ends."""

import threading
import time
import uuid
from contextlib import closing, suppress
from typing import Protocol

from cdc.machine_load import patient
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.timeouts import BUILD_SILENT_S
from jobs.generations.build_request import (
    BEAT_S,
    BuildAnswer,
    BuildRequest,
    BuildState,
    Silence,
    forget,
    load_answer,
    save_request,
    settings_mark,
    withdraw,
)
from jobs.generations.starting import STARTING_NAME
from jobs.query.sink_plan import SinkPlan
from jobs.report import BatchApplied, Reporter, SinkStarted, SinkWaiting
from lockstep.rebuild.outcome import NoDriver
from sinks.contract import OpenedSink


class BuildJob(Protocol):
    """A job that applies the log to a generation. ``failure`` is its error, once it isn't alive any more."""

    @property
    def is_alive(self) -> bool: ...

    @property
    def failure(self) -> Exception | None: ...

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, at most this long."""
        ...

    def stop(self) -> None:
        """End it after the running batch, and wait for that."""
        ...


class StartJob(Protocol):
    """Starts the job of a plan."""

    def __call__(self, plan: SinkPlan, *, report: Reporter) -> BuildJob: ...


class DriverJob:
    """A job in the driver. It fails with NoDriver if no driver takes it, or its driver is gone and no other comes."""

    def __init__(self, plan: SinkPlan, *, report: Reporter) -> None:
        self.failure: Exception | None = None
        self._plan = plan
        self._report = report
        run = uuid.uuid4().hex
        self._request = BuildRequest(
            tuple(plan.tables),
            trimmed=plan.trimmed,
            settings=settings_mark(plan.settings, run),
            run=run,
        )
        self._known = BuildAnswer(self._request.run)
        self._outages = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"asks-{plan.name}-g{plan.generation}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    def stop(self) -> None:
        """End it after the running batch, and wait for that, or until its driver is gone."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        number = self._plan.generation
        try:
            with closing((opened := self._plan.opened()).sink):
                try:
                    self._ask(opened)
                finally:
                    with suppress(LockstepError):
                        withdraw(opened.records, number, self._request.run)
                        forget(opened.records, number)
        except Exception as error:  # raised by the caller that waits for the job
            self.failure = error

    def _ask(self, opened: OpenedSink) -> None:
        """Return when the job has ended in order. Raises what it ended with, and NoDriver."""
        silence = Silence()
        while True:
            is_stopping = self._stop.is_set()
            try:
                if self._is_over(opened, silence, is_stopping=is_stopping):
                    return
            except Unavailable:  # the driver can't show anything either
                if is_stopping:
                    return  # the driver learns from the silence that nobody asks any more
                self._outages += 1
            if is_stopping:
                time.sleep(BEAT_S / 4)
            else:
                self._stop.wait(BEAT_S)

    def _is_over(self, opened: OpenedSink, silence: Silence, *, is_stopping: bool) -> bool:
        """Give a sign of life, and look at the answer. Raises as ``_ask``, and Unavailable."""
        records, number = opened.records, self._plan.generation
        if is_stopping:
            withdraw(records, number, self._request.run)
        else:
            self._request = self._request.next()
            save_request(records, number, self._request)
        answer = load_answer(records, number)
        # A driver that starts again after one was killed shows for minutes that it starts.
        signs = answer, records.load(STARTING_NAME), is_stopping, self._outages
        is_silent = silence.seconds(*signs) > patient(BUILD_SILENT_S)
        state = None
        if answer is not None and answer.run == self._request.run:
            state = answer.state
            self._take_in(answer)
        if state is BuildState.FAILED:
            raise self._known.error()
        if state is BuildState.REFUSED or (is_silent and not is_stopping):
            raise NoDriver
        # If no driver has begun it, none will: its next look finds no request.
        has_left = is_stopping and (state is BuildState.LEFT or self._known.beats == 0 or is_silent)
        return state is BuildState.DONE or has_left

    def _take_in(self, answer: BuildAnswer) -> None:
        plan, known, self._known = self._plan, self._known, answer
        if answer.beats < known.beats:  # another driver has begun it again, and counts from 0
            known = BuildAnswer(answer.run)
        if answer.queries > known.queries:
            self._report(SinkStarted(plan.name, plan.generation))
        if answer.batch is not None and answer.rows > known.rows:
            self._report(BatchApplied(**{**answer.batch, "rows": answer.rows - known.rows}))
        if answer.waiting and answer.waiting != known.waiting:
            self._report(SinkWaiting(plan.name, answer.waiting, BEAT_S))
