"""``lockstep verify SINK``: compares, reports what differs, and with ``repair`` has that published again."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from cdc.model.append_only import is_append_only
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.table import TableName
from lockstep.config import Config
from lockstep.generations import config_now, settings_of
from lockstep.verify.comparing.table_comparer import TableComparer
from lockstep.verify.explain import explain
from lockstep.verify.options import SOURCE, TOPIC, VerifyOptions, chosen_tables
from lockstep.verify.progress import OnStep
from lockstep.verify.repair import repair
from lockstep.verify.report import BY_TOPIC, TableReport, VerifyReport
from lockstep.verify.sides.opening import open_sides
from lockstep.verify.waiting import Stalled, Waiting
from sinks.registry import SinkSettings

_DOCTOR: Final = "`lockstep doctor` says what it waits for"
_UNCAPTURED: Final = f"it isn't captured, and the sink goes on without it; {_DOCTOR}"


def verify(
    config: Config,
    options: VerifyOptions,
    *,
    say: Callable[[str], None],
    progress: OnStep,
    stopping: Callable[[], bool],
) -> VerifyReport:
    """Compare a sink's generation, on a live system. Changes nothing unless ``options.repair``.

    Raises ConfigurationError for options that don't fit the configuration, Unavailable if a server can't be reached,
    and LockstepError if nothing is applied, if a table of a view isn't captured, or if it is stopped.
    """
    settings = options.settings or settings_of(config, options.sink)
    _check_view(options, settings)
    chosen = chosen_tables(options, settings, config.source.keyed_names)
    is_view = settings.view is not None
    config = config_now(config)  # capture may have been started without a named table
    lacking = config.uncaptured_tables(settings) if is_view else ()
    if lacking:
        raise LockstepError(
            f"view {options.sink!r} reads {lacking[0]}, which isn't captured: it waits, and its rows stay as they were",
            hint=_DOCTOR,
        )
    captured = set(config.source.table_names)
    names = chosen if is_view else [name for name in chosen if name in captured]
    if not names:
        tables = ", ".join(map(str, chosen))
        raise LockstepError(f"nothing of sink {options.sink!r} can be compared: {tables} isn't captured", hint=_DOCTOR)
    append_only = [name for name in names if name in config.source.append_only and not is_view]
    waiting = Waiting(stopping)

    def compare(options: VerifyOptions, names: Sequence[TableName]) -> VerifyReport:
        return compare_tables(config, options, settings, names, waiting=waiting, say=say, progress=progress)

    keyed = [name for name in names if name not in append_only]
    if options.against != SOURCE or not append_only:
        reports = [compare(options, names)]
    else:
        # The source's rows have nothing by which to find a row here; the topic's events have.
        reports = [compare(options, keyed)] if keyed else []
        reports.append(compare(replace(options, against=TOPIC, repair=False), append_only))
    by_name = {table.table: table for report in reports for table in report.tables}
    if options.against == SOURCE:
        by_name |= {
            name: replace(by_name[name], note=BY_TOPIC) for name in append_only if not by_name[name].not_compared
        }
    by_name = {name: TableReport(name, not_compared=_UNCAPTURED) for name in chosen if name not in names} | by_name
    return replace(reports[0], tables=tuple(by_name[name] for name in chosen))


def _check_view(options: VerifyOptions, settings: SinkSettings) -> None:
    """Raise ConfigurationError for options that make no sense for a view."""
    if settings.view is not None and options.against == TOPIC:
        raise ConfigurationError(
            f"{options.sink!r} is a view, and no topic has its rows",
            hint="compare it with its query on the source, which is the default, or with another generation",
        )
    if settings.view is not None and options.repair:
        raise ConfigurationError(
            f"{options.sink!r} is a view, whose rows aren't published again one by one",
            hint=f"`lockstep rebuild {options.sink} --switch` builds it anew from the log",
        )


def compare_tables(
    config: Config,
    options: VerifyOptions,
    settings: SinkSettings,
    names: Sequence[TableName],
    *,
    waiting: Waiting,
    say: Callable[[str], None],
    progress: OnStep,
) -> VerifyReport:
    """Compare these tables as the options say. Raises as ``verify``."""
    with open_sides(config, options, settings, names, waiting=waiting, say=say) as sides:
        point = sides.sync_point()
        # Before anything is read: a sink that lags far would differ everywhere.
        if not all(compared.not_comparable for compared in sides.tables):
            sides.applied.wait(point)
        comparer = TableComparer(sides, options, waiting=waiting, say=say, progress=progress)
        reports = []
        for compared in sides.tables:
            table = compared.table
            if compared.not_comparable:
                reports.append(TableReport(table.name, not_compared=compared.not_comparable))
                continue
            may_lack_rows = sides.settings.may_lack_rows(table.name)
            report = replace(comparer.compare(table), left_out=compared.left_out, may_lack_rows=may_lack_rows)
            can_repair = settings.view is None and not is_append_only(table)
            if options.repair and report.differences and can_repair:
                try:
                    report = repair(
                        table,
                        report,
                        sides=sides,
                        comparer=comparer,
                        options=options,
                        slot=config.slot,
                        waiting=waiting,
                        say=say,
                    )
                except Stalled as error:  # report the differences all the same
                    say(f"nothing was repaired: {error}")
            reports.append(
                explain(
                    config,
                    table,
                    report,
                    sink=options.sink,
                    generation=sides.generation,
                    waiting=waiting,
                    progress=progress,
                )
            )
        sides.check_epoch(point)
        return VerifyReport(
            options.sink, sides.generation, sides.expected.name, point.lsn, tuple(reports), epoch=point.epoch
        )
