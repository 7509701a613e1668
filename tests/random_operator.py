"""The operator in a round of random statements: when capture stops by design, it does what the message says.

That is the hint's SQL, deleting topics, dropping a slot, `lockstep recover`. A stop that names none of them fails the
round.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import psycopg
from confluent_kafka.admin import AdminClient

from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from cdc.postgres.memberships import memberships
from lockstep.capture.recover import recover
from tests.captured import Captured
from tests.databases import Database
from tests.dying_publisher import Killed
from tests.random_tables import TABLES, Publication, put_back

_STOPS_MAX = 25
"""Capture may stop for one reason after the other, a table each. More stops than this lead nowhere."""

_BUSY_S = 5.0
"""How long the sessions may keep capture from starting."""


class Operator:
    """``names`` are those under which each table may be found. ``rest`` ends all transactions of the sessions."""

    def __init__(
        self,
        database: Database,
        captured: Captured,
        publication: Publication,
        names: Mapping[str, Sequence[str]],
        *,
        rest: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self._database = database
        self._captured = captured
        self._publication = publication
        self._names = names
        self._rest = rest
        self._note = note
        self._not_ready = ""
        self.done: Counter[str] = Counter()
        self.lost = False
        """Whether something was lost for good, as messages are with a slot."""

    def say(self, text: str) -> None:
        self._note(f"-- {text}")

    def go_on(self) -> None:
        """Start capture, and do what its messages say, until it streams."""
        for _ in range(_STOPS_MAX):
            self._captured.stop()
            self._captured.begin()
            error = self._captured.streams_or_error(partial(self._unlock_after, time.monotonic()))
            if error is None:
                return
            self.mend(error)
        raise AssertionError(f"capture stops again and again, last with: {self._captured.error}")

    def _unlock_after(self, since: float) -> None:
        """End our sessions' transactions: capture waits for one that alters a table, or writes while a slot is made."""
        if time.monotonic() - since > _BUSY_S:
            self._rest()

    def mend(self, error: BaseException) -> None:
        """Do what the message of a stop says; raises it if it says nothing."""
        if isinstance(error, Killed):
            return
        if not isinstance(error, LockstepError):
            raise error
        self._captured.stop()
        self._rest()
        said = re.sub(r"[\d/A-F]+|t\d+_\d+\S*|public\.\w+", "...", error.message.split("\n")[0])[:70]
        self.done[f"stop: {said}"] += 1
        self.say(f"capture stops: {error}")
        text, hint = str(error), error.hint or ""
        topics = [topic for name, topic in self._captured.config.topics().items() if re.search(rf"{topic}\b", text)]
        if "the source isn't ready" in text:
            if text == self._not_ready or not self._run_sql(text):
                self.put_back()  # the message knows nothing of what is missing
                text = ""  # the message may come again much later, when its statement helps again
            self._not_ready = text
        elif found := re.search(r"leaves out key columns of (\S+):", text):
            alter = f"alter publication {self._publication.name}"
            self._run_sql(f"{alter} drop table {found[1]}; {alter} add table {found[1]};")
        elif "`lockstep recover`" in hint:
            self._run_sql(hint)
            self._recover()
        elif "holds no state for it" in text:
            self._run_sql(hint)
            self.lost = True
        elif "delete the topic" in hint or "delete these topics" in hint or "delete this topic" in hint:
            assert topics, text
            self.delete(topics)
        elif text.startswith("PostgreSQL refused: publication") and "`lockstep doctor`" in hint:
            self.put_back()  # it was dropped just when a copy looked
        elif "no longer sends" in text or "add primary key" in hint or "not in publication" in text:
            if not self._run_sql(hint):
                self.put_back()
        else:
            raise error

    def put_back(self) -> None:
        """Put all tables back in place, published and with keys."""
        for statement in put_back(self._database, self._publication, self._names):
            self._note(statement)
            try:
                self._database.execute(statement)
            except psycopg.Error as error:
                self.say(f"refused: {error}")

    def put_missing_back(self) -> None:
        """Put unpublished tables back: capture reports them and goes on, but their copies wait."""
        names = [TableName("public", table) for table in TABLES]
        if len(memberships(self._database.connection, self._publication.name, names)) < len(names):
            self.say("tables are put back, for which capture would wait")
            self.put_back()

    def _recover(self) -> None:
        pipeline = self._captured.config.as_pipeline()
        self.lost = True
        try:
            agreed = recover(
                pipeline,
                [f"public.{table}" for table in TABLES],
                agreed=lambda _: True,
                stopping=lambda: False,
                say=self._captured.said.append,
            )
        except Unavailable as error:
            self.say(f"not recovered: {error}")  # the next start reports again what is wrong
        except LockstepError as error:
            self.mend(error)
            self._recover()
        else:
            assert agreed is not None

    def _run_sql(self, text: str) -> bool:
        """Run the statements that a message names; returns whether one succeeded."""
        done = 0
        for statement in re.findall(r"(?:(?:alter|create) (?:table|publication)|select pg_drop)[^;\n]*(?=;)", text):
            self._note(statement)
            try:
                self._database.execute(statement)
            except psycopg.Error as error:
                self.say(f"refused: {error}")
            else:
                done += 1
        return done > 0

    def delete(self, topics: Sequence[str]) -> None:
        admin = AdminClient(dict(self._captured.client))
        present = TopicAdmin(self._captured.client)
        for topic in topics:
            if topic in present.partition_counts([topic]):
                admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
