"""The open rejections of a pipeline: found, read with their values, and closed."""

from collections.abc import Sequence

from cdc.kafka.topic_names import table_topic
from cdc.model.errors import LockstepError
from jobs.dead_letters.record import DeadLetter, UnreadableDeadLetter, newest_of_rows
from jobs.dead_letters.topic import DeadLetterTopic
from lockstep.config import Config
from lockstep.rejections.output import Tables, position_text, table_text
from lockstep.rejections.selection import EVERYTHING, Selection


class OpenRecords:
    """The open rejections of a pipeline at each call: the newest dead letter of each row. ``tables`` are those that are
    captured, and the results of views, by topic."""

    def __init__(self, config: Config) -> None:
        self._pipeline = config.pipeline.name
        self.tables = captured_tables(config)
        self.topic = DeadLetterTopic(config.kafka.client(), self._pipeline)

    def read(
        self, sink: str | None, selection: Selection = EVERYTHING
    ) -> tuple[list[DeadLetter], list[UnreadableDeadLetter]]:
        """The selected rejections, oldest first, and all unreadable dead letters of the sink, or that name no sink.
        ``sink`` may be an extension's store. Raises ConfigurationError, Unavailable."""
        selection.check()
        readable, unreadable = self.topic.read()
        chosen = [
            dead_letter
            for dead_letter in newest_of_rows(readable)
            if sink in (None, dead_letter.sink) and selection.takes(dead_letter, self._pipeline)
        ]
        return chosen, [record for record in unreadable if sink is None or record.sink in (None, sink)]

    def single(self, sink: str, selection: Selection) -> DeadLetter:
        """The one selected rejection. Raises LockstepError if there is none, or more than one."""
        chosen, _ = self.read(sink, selection)
        if not chosen:
            raise no_such_rejection(sink)
        if len(chosen) > 1:
            raise LockstepError(
                f"{sink!r} has {len(chosen)} open rejections of that key or position: "
                + ", ".join(
                    f"generation {each.generation} {table_text(each, self.tables)}:{position_text(each)}"
                    for each in chosen
                ),
                hint="say which with --generation, --table or its position",
            )
        return chosen[0]

    def value(self, dead_letter: DeadLetter) -> bytes | None:
        """The rejected event's value, None for a tombstone. Raises LockstepError if the rejection is closed."""
        for _, value in self.topic.values([dead_letter]):
            return value
        raise LockstepError(
            "the rejection was closed meanwhile", hint="a newer version of its row got through, or it was retried"
        )

    def close(self, dead_letters: Sequence[DeadLetter], unreadable: Sequence[UnreadableDeadLetter] = ()) -> None:
        """Remove these dead letters. One that is closed already, or was rejected in a newer version since, stays."""
        keys = [key for dead_letter in dead_letters for key in dead_letter.record_keys]
        keys += [record.record_key for record in unreadable]
        self.topic.send((key, None) for key in keys)


def captured_tables(config: Config) -> Tables:
    """Topic -> the captured table whose events it has. A view's result has the name that such a topic would have."""
    tables = {topic: name for name, topic in config.topics().items()}
    return tables | {table_topic(config.pipeline.name, view.table): view.table for view in config.views.values()}


def no_such_rejection(sink: str) -> LockstepError:
    """The error for a key or position that names no open rejection."""
    return LockstepError(
        f"{sink!r} has no open rejection of that key or position",
        hint=f"`lockstep rejections list {sink}` shows those there are; one is closed by a newer version of its row",
    )
