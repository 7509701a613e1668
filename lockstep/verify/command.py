"""The command ``lockstep verify``: a generation's settings, messages, the result, the exit code."""

import json
import logging
import time
from dataclasses import replace

from cdc.model.errors import LockstepError
from jobs.clock import now_ms
from lockstep.config import Config
from lockstep.console import EXIT_FAILED, StopOnSignals
from lockstep.generations import describe, settings_of, settings_of_generation
from lockstep.terminal import out
from lockstep.verify.options import VerifyOptions
from lockstep.verify.progress import Step
from lockstep.verify.report import VerifyReport, verify_table
from lockstep.verify.result import failure_of, is_of_everything, keep, only_one, result_of
from lockstep.verify.verify import verify
from monitor.verification import VerifyOutcome

logger = logging.getLogger("lockstep.verify")

_LINE_EVERY_S = 5.0


def run_verify(config: Config, options: VerifyOptions, *, as_json: bool) -> int:
    """Compare and show the result; returns the exit code: 0 if all of it is equal, else 1. Raises as ``verify``, as
    ``with_built_settings``, and ConfigurationError for options that mean nothing."""
    options.check()
    settings_of(config, options.sink)  # nothing is stored for an unknown name
    due = time.monotonic() + _LINE_EVERY_S

    def progress(step: Step) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _LINE_EVERY_S
            logger.info("%s: %s, %d", step.table, step.what, step.count)

    stopping = StopOnSignals()
    with only_one(config.watch_directory, options.sink):
        began_ms = now_ms()
        try:
            report = verify(
                config,
                with_built_settings(config, options),
                say=lambda sentence: logger.info("%s", sentence),
                progress=progress,
                stopping=stopping,
            )
        except LockstepError as error:
            if is_of_everything(options) and not stopping():
                failure = failure_of(error, began_ms=began_ms, ended_ms=now_ms())
                keep(config, options.sink, options.generation, failure)
            raise
        ended_ms = now_ms()
        try:  # a slow or broken reader of the output doesn't lose the stored result, or the other way round
            _show(report, as_json=as_json)
        finally:
            if is_of_everything(options):
                result = result_of(report, began_ms=began_ms, ended_ms=ended_ms)
                keep(config, report.sink, report.generation, result)
    return 0 if report.outcome is VerifyOutcome.EQUAL else EXIT_FAILED


def _show(report: VerifyReport, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.to_json(), indent=2), flush=True)  # noqa: T201  the result
    else:
        out.print(verify_table(report))


def with_built_settings(config: Config, options: VerifyOptions) -> VerifyOptions:
    """The options with the settings that the compared generations were built with, which may not be today's. Raises as
    ``describe``."""
    generations = {each.generation.number: each.generation for each in describe(config, options.sink)}
    live = next((number for number, generation in generations.items() if generation.is_live), None)
    compared = generations.get(options.generation or live or 0)
    other = generations.get(int(options.against)) if options.against.isdecimal() else None
    if compared is not None:
        options = replace(options, settings=settings_of_generation(config, options.sink, compared))
    if other is not None:
        options = replace(options, other_settings=settings_of_generation(config, options.sink, other))
    return options
