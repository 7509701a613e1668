"""``lockstep verify SINK``: compares, tells what differs, and with ``repair`` has just that published again."""

from collections.abc import Callable
from dataclasses import replace

from lockstep.config import Config
from lockstep.generations import settings_of
from lockstep.verify.comparing.table_comparer import TableComparer
from lockstep.verify.explain import explain
from lockstep.verify.options import VerifyOptions, chosen_tables
from lockstep.verify.progress import OnStep
from lockstep.verify.repair import repair
from lockstep.verify.report import VerifyReport
from lockstep.verify.sides.opening import open_sides
from lockstep.verify.waiting import Stalled, Waiting


def verify(
    config: Config,
    options: VerifyOptions,
    *,
    say: Callable[[str], None],
    progress: OnStep,
    stopping: Callable[[], bool],
) -> VerifyReport:
    """Compare a sink's generation, on a live system. Changes nothing unless ``options.repair``.

    Raises ConfigurationError for options that don't fit the configuration, and Unavailable when a server can't be
    reached. Raises LockstepError when nothing is applied, or when it is stopped.
    """
    settings = options.settings or settings_of(config, options.sink)
    names = chosen_tables(options, settings, config.source.keyed_names)
    waiting = Waiting(stopping)
    with open_sides(config, options, settings, names, waiting=waiting, say=say) as sides:
        point = sides.sync_point()
        # Before anything is read: a sink that lags far would differ everywhere.
        sides.applied.wait(point)
        comparer = TableComparer(sides, options, waiting=waiting, say=say, progress=progress)
        reports = []
        for compared in sides.tables:
            table = compared.table
            report = replace(comparer.compare(table), left_out=compared.left_out)
            if options.repair and report.differences:
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
                except Stalled as error:  # the differences are to be reported all the same
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
        return VerifyReport(options.sink, sides.generation, sides.expected.name, point.lsn, tuple(reports))
