"""Rules of whoever runs the pipeline: how many rows of a result fulfil a condition. Asked in a thread of its own.

Only their number is asked for, and no row's value leaves the store. A rule reads what readers see, in a transaction
that can't write, and for some seconds at most.
"""

import logging
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Final, Self

from cdc.model.errors import LockstepError, bug
from cdc.model.log_message import LogMessage
from monitor.alerts.conditions import RuleAnswer
from monitor.alerts.settings import RuleSettings, RuleTarget
from monitor.question import Question
from sinks.warehouse.postgres.connection import WarehouseConnection

logger = logging.getLogger("lockstep.alerts")

_LOOK_S: Final = 60.0
_ANSWER_S: Final = 20.0
_STATEMENT_TIMEOUT_MS: Final = 10_000


def count_rows(rule: RuleSettings, target: RuleTarget) -> int:
    """How many rows fulfil a rule's condition; no more are counted than matter. Raises LockstepError."""
    connection = WarehouseConnection(target.settings, views=target.name, generation=0, forget=lambda: None)
    try:
        with connection.transaction():
            connection.run("set transaction read only")
            connection.run(f"set local statement_timeout = {_STATEMENT_TIMEOUT_MS}")
            # The line's end ends a comment, too, that the condition ends with.
            counted = connection.run(
                f"with result as (select * from {target.relation}) select count(*) from"
                f" (select 1 from result where (\n{rule.where}\n) limit {rule.more_than + 1}) as fulfilling"
            )
            return int(counted.scalar_one())
    finally:
        connection.close()


class RuleCollector:
    """Asks all rules at once and once a minute, until it is closed. One that hangs holds up the others for some seconds
    once, and then none.
    """

    def __init__(self, rules: Mapping[str, tuple[RuleSettings, RuleTarget]]) -> None:
        self._rules = rules
        self._open: dict[str, Question[int]] = {}
        self._said = set[str]()
        self._latest: Mapping[str, RuleAnswer] = dict.fromkeys(rules)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="alert-rules", daemon=True)
        if rules:
            self._thread.start()

    def latest(self) -> Mapping[str, RuleAnswer]:
        """What is known of each rule. Waits for nothing."""
        return self._latest

    def close(self) -> None:
        """End the thread. One that hangs in a server's answer ends with the process."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while not self._closed.is_set():
            for name, (rule, target) in self._rules.items():
                if name not in self._open:
                    self._open[name] = Question(partial(count_rows, rule, target))
            until = time.monotonic() + _ANSWER_S
            self._latest = {name: self._answer(name, until) for name in self._rules}
            self._closed.wait(_LOOK_S)

    def _answer(self, name: str, until: float) -> RuleAnswer:
        """What a rule's store says, by ``until`` of the monotonic clock at the latest."""
        question = self._open.pop(name)
        try:
            # One that has been asked for long is known to hang: it isn't waited for again.
            answer = question.wait(max(0.0, min(until, question.asked_at + _ANSWER_S) - time.monotonic()))
        except Exception as error:
            answer = bug(error)
            if name not in self._said:
                self._said.add(name)
                logger.exception(LogMessage("rule can't be asked", {"rule": name}, answer.message))
        else:
            if answer is None:
                self._open[name] = question
                answer = LockstepError(f"its store hasn't answered for {question.age_s:.0f} s")
            else:
                self._said.discard(name)
        return answer
