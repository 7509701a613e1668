"""Builds a generation beside the live one: loads, catches up, compares, switches.

The destination stores how far it is: the generation's record, its build inputs and its progress. So an interrupted
build goes on when the command is run again.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final

from cdc.kafka.topic_names import table_topic
from cdc.model.errors import LockstepError, PositionMismatch, Unavailable
from cdc.model.table import TableName
from jobs.generations.first_read import load_first_read
from jobs.generations.record import (
    Phase,
    Record,
    begin_generation,
    check_owner,
    list_generations,
    load_record,
    save_record,
)
from jobs.generations.switch import switch
from lockstep.config import Config
from lockstep.generations import log_ends_now, remove, require_captured, sink_tables_now
from lockstep.rebuild.build_inputs import (
    BuildInputs,
    check_complete,
    load_inputs,
    read_inputs,
    recopy_hint,
    recreated_topics,
    save_inputs,
)
from lockstep.rebuild.generation_build import Build, RebuildContext, check_not_trimmed, open_generation, topic_ids_read
from lockstep.rebuild.inputs_watch import InputsWatch, cause_in_inputs
from lockstep.rebuild.outcome import InputsChanged, Rebuilt
from lockstep.verify.report import Kind
from sinks.contract import OpenedSink, Progress
from sinks.registry import SinkSettings, definition, open_sink, with_definition

_BUILDS_MAX: Final = 4
"""How many generations one command begins while tables keep changing."""


def begin_beside(config: Config, name: str, settings: SinkSettings, say: Callable[[str], None]) -> tuple[int, Record]:
    """The generation to build: one that was begun with the same settings, else a new one. Raises LockstepError for a
    generation of another pipeline, and what the destination raises."""
    with open_generation(name, settings, 1) as opened:
        wanted = definition(settings)
        for generation in list_generations(opened):
            record, number = generation.record, generation.number
            if record is None or record.phase is not Phase.BUILDING:
                continue
            check_owner(name, number, record, config.pipeline.name)
            if generation.is_live:
                say(f"generation {number} was switched to by a rebuild that ended there: it is in use now")
                save_record(opened.records, number, replace(record, phase=Phase.READY, loaded=True))
            elif definition(with_definition(settings, record.definition)) == wanted:
                say(f"going on with generation {number}")
                return number, record
            elif record.exposed:
                say(f"generation {number} was begun with other settings, and readers may have seen it: it is kept")
                save_record(opened.records, number, replace(record, phase=Phase.READY, loaded=True))
            else:
                say(f"generation {number} was begun with other settings: dropping it")
                with open_generation(name, settings, number) as half_built:
                    drop_half_built(config, name, half_built, number)
        record = Record(
            config.pipeline.name, wanted, phase=Phase.BUILDING, loaded=False, created_at_ms=time.time_ns() // 1_000_000
        )
        number = begin_generation(opened, record)
        live = opened.generations.live()
    beside = "" if live is None else f" beside generation {live}, which readers go on to see"
    say(f"building generation {number}{beside}")
    return number, record


def drop_half_built(config: Config, name: str, opened: OpenedSink, number: int) -> None:
    """Drop a half-built generation. Raises LockstepError if readers see it, or may have seen it."""
    record = load_record(opened.records, number)
    if (
        record is None
        or record.phase is not Phase.BUILDING
        or record.exposed
        or record.pipeline != config.pipeline.name
        or opened.generations.live() == number
    ):
        raise LockstepError(
            f"generation {number} of sink {name!r} isn't dropped: readers may have seen it",
            hint=f"if nobody needs it: lockstep generations {name} --drop {number}; then run this again",
        )
    remove(config, name, opened, number, record)


def build_beside(context: RebuildContext, number: int, record: Record, *, switch_over: bool) -> Rebuilt:
    """Build this generation, and another one if a table changes so that this one can't become right.

    ``switch_over`` lets readers see it if it is equal to the source. They also see it if they saw none before. Raises
    Interrupted, and LockstepError if it fails or if tables keep changing.
    """
    for builds in count(1):
        with open_generation(context.name, context.settings, number) as opened:
            try:
                outcome = _Generation(context, number, record, opened).build(switch_over=switch_over)
            except PositionMismatch:  # its message says how to begin again
                raise
            except LockstepError:
                context.observer.say(
                    f"generation {number} is kept as far as it is: run this again when the reason is mended, or begin"
                    f" again after `lockstep generations {context.name} --drop {number}`"
                )
                raise
            if isinstance(outcome, Rebuilt):
                return outcome
            if builds == _BUILDS_MAX:
                raise LockstepError(
                    f"generation {number} can't become right any more, nor could the {_BUILDS_MAX - 1} before it: "
                    f"{outcome.why}",
                    hint=f"run `lockstep rebuild {context.name}` while the tables don't change: it drops this"
                    " generation and begins again",
                )
            context.observer.say(
                f"generation {number} can't become right any more: {outcome.why}; dropping it and beginning again"
            )
            drop_half_built(context.config, context.name, opened, number)
        context = context.of_tables(sink_tables_now(context.config, context.settings))
        require_captured(context.config, context.name, context.settings)
        number, record = begin_beside(context.config, context.name, context.settings, context.observer.say)
    raise AssertionError("it returns or raises")


class _Generation:
    def __init__(self, context: RebuildContext, number: int, record: Record, opened: OpenedSink) -> None:
        self._context = context
        self._number = number
        self._record = record
        self._opened = opened

    def build(self, *, switch_over: bool) -> Rebuilt | InputsChanged:
        """Build it. Returns InputsChanged if it can't become what the source has by now."""
        watch = self._watch_inputs()
        if isinstance(watch, InputsChanged):
            return watch
        try:
            return self._build(watch, switch_over=switch_over)
        except LockstepError as failure:
            changed = cause_in_inputs(failure, watch, partial(self._check_not_trimmed, has_read=True))
            if changed is not None:
                return changed
            raise

    def _watch_inputs(self) -> InputsWatch | InputsChanged:
        """Look at the inputs before anything is read. Raises LockstepError if topics lack rows."""
        begun = load_inputs(self._opened.records, self._number)
        if begun is not None:
            left = sorted(begun.topic_ids.keys() - set(self._context.tables))
            if left:
                return InputsChanged(f"it was begun with {_listed(left)}, which the sink hasn't any more")
            joined = sorted(set(self._context.tables) - begun.topic_ids.keys())
            if joined:
                self._context.observer.say(f"{_listed(joined)} joined since: read once the others are loaded")
                self._context = self._context.of_tables(begun.topic_ids)
        context = self._context
        now = read_inputs(context.config, context.tables)
        inputs = begun
        if inputs is None:
            ids_read = topic_ids_read(context.config, context.tables, self._opened.generations)
            inputs = replace(now, topic_ids={**now.topic_ids, **ids_read})
        watch = InputsWatch(
            context.config, context.tables, inputs, again=[self._drop_command, f"lockstep rebuild {context.name}"]
        )
        changed = watch.check(now)
        if changed is not None:
            return changed
        check_complete(now, context.tables)
        if begun is None:
            save_inputs(self._opened.records, self._number, now)
        if not context.trimmed:
            self._check_not_trimmed(has_read=begun is not None)
        return watch

    def _build(self, watch: InputsWatch, *, switch_over: bool) -> Rebuilt | InputsChanged:
        build = Build(self._context, self._number, self._opened, watch)
        if not self._record.loaded:
            changed = build.load()
            if changed is not None:
                return changed
            # Without a load, nothing is read yet: a later run in a Spark of its own may load.
            self._save(replace(self._record, loaded=self._context.loads))
        job = build.start()
        try:
            changed = build.catch_up(job) or self._left_capture()
            if changed is not None:
                return changed
            self._save(replace(self._record, loaded=True))
            report = build.compare(job)
            if isinstance(report, InputsChanged):
                return report
            changed = watch.look() or self._left_capture()
            if changed is not None:
                return changed
            live = self._opened.generations.live()
            explained = self._explained(live)
            if not report.is_equal:
                if live is not None and any(table.count(Kind.MISSING) for table in report.tables):
                    self._say_what_topics_lack(live, watch)
                return build.result(report, is_live=live == self._number, explained=explained)
            is_switched = switch_over or live is None
            # Our job still applies to it, so that it doesn't fall back before readers see it.
            before = self._switch() if is_switched else None
        finally:
            job.stop()
        # From now on a running `lockstep apply` keeps it up to date.
        self._save(replace(self._record, phase=Phase.READY, loaded=True))
        return build.result(report, is_live=is_switched, switched_from=before, explained=explained)

    def _left_capture(self) -> InputsChanged | None:
        """Whether the build may have read a table that isn't captured any more. Raises as ``sink_tables_now``.

        The job doesn't read such a table to its end, and the live generation may be further: readers would see older
        rows. A table that the build began with counts even if unread: readers would see what the generation has of it.
        """
        context, records = self._context, self._opened.records
        known = self._opened.generations.load_progress(), load_first_read(records, self._number)
        read = {topic for each in known if each is not None for topic, _ in each.next_offsets}
        captured = set(map(self._topic, sink_tables_now(context.config, context.settings)))
        left = {*read, *map(self._topic, context.tables)} - captured
        if not left:
            return None
        # A table that joined during the build is known by its topic alone.
        names = {self._topic(table): str(table) for table in context.tables}
        return InputsChanged(f"{_listed(sorted(names.get(topic, topic) for topic in left))} left capture meanwhile")

    def _topic(self, table: TableName) -> str:
        return table_topic(self._context.config.pipeline.name, table)

    def _switch(self) -> int | None:
        """Let readers see it. Returns what they saw before."""
        context = self._context
        self._save(replace(self._record, exposed=True))
        return switch(
            partial(open_sink, context.name, context.settings),
            self._number,
            # Readers of the live generation have tables that were captured after this build began.
            log_ends=lambda: log_ends_now(context.config, context.settings),
        )

    def _save(self, record: Record) -> None:
        self._record = record
        save_record(self._opened.records, self._number, record)

    def _explained(self, live: int | None) -> tuple[str, ...]:
        """What readers will find different from the live generation, by the settings it was built with."""
        record = None if live is None or live == self._number else load_record(self._opened.records, live)
        if record is None:
            return ()
        settings = self._context.settings
        now, before = definition(settings), definition(with_definition(settings, record.definition))
        return tuple(
            f"{setting} was {before[setting]!r} and is {now[setting]!r}"
            for setting in sorted(now)
            if now[setting] != before[setting]
        )

    def _say_what_topics_lack(self, live: int, watch: InputsWatch) -> None:
        """Report topics that were recreated before this build began, after the live generation had read them."""
        context = self._context
        with open_generation(context.name, context.settings, live) as opened:
            ids_read = topic_ids_read(context.config, context.tables, opened.generations)
        recreated = recreated_topics(BuildInputs(ids_read, {}), watch.begun)
        if recreated:
            topics = ", ".join(context.config.topics_of(recreated))
            context.observer.say(
                f"topic {topics} was recreated after generation {live} read it: it lacks the rows that weren't written"
                f" since then; {recopy_hint(recreated, [f'lockstep rebuild {context.name}'])}"
            )

    def _check_not_trimmed(self, *, has_read: bool) -> None:
        again = f"lockstep rebuild {self._context.name} --trimmed"
        drop = [self._drop_command] if has_read else []
        check_not_trimmed(self._context, self._progress(), commands=[*drop, again], afresh=has_read)

    def _progress(self) -> Progress | None:
        try:
            return self._opened.generations.load_progress()
        except Unavailable:
            return None

    @property
    def _drop_command(self) -> str:
        return f"lockstep generations {self._context.name} --drop {self._number}"


def _listed(tables: Iterable[TableName | str]) -> str:
    return ", ".join(map(str, tables))
