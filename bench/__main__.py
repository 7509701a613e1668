"""`python -m bench`: measure, print a table, write JSON. The exit code says whether the run worked, not how fast."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from bench import (
    bootstrap,
    debezium,
    drain,
    everyday,
    everyday_figures,
    first_copy,
    flink,
    large,
    latency,
    machine,
    many,
    peer,
    replay,
    report,
    view_sink,
    visible,
    watched,
)
from bench.figures import Figure, median_run
from bench.rig import Rig, Say
from bench.sizes import FULL, QUICK, Sizes
from cdc.model.errors import LockstepError
from stack.errors import StackError

RESULTS = Path(__file__).parent / "results"

_TABLE_WIDTH = 180

Phase = Callable[[Rig, Sizes, Say], tuple[list[Figure], dict[str, Any]]]

PHASES: Mapping[str, Phase] = {
    "drain": drain.measure,
    "latency": latency.measure,
    "debezium": debezium.measure,
    "snapshot": first_copy.measure,
    "large": large.measure,
    "sinks": visible.measure,
    "everyday": everyday.measure,
    "replay": replay.measure,
    "bootstrap": bootstrap.measure,
    "many": many.measure,
    "views": view_sink.measure,
    "flink": flink.measure,
    "watched": watched.measure,
}


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line. Unknown phases end the program with a message."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help=f"write the document here too, beside {RESULTS.name}/"
    )
    parser.add_argument("--only", default=",".join(PHASES), help=f"phases, by comma: {', '.join(PHASES)}")
    parser.add_argument(
        "--runs", type=int, default=1, help="runs of all phases, one after the other; the table has the medians"
    )
    parser.add_argument(
        "--stack",
        type=Path,
        metavar="DIR",
        help="use this stack and leave it up; its sinks keep the rows of the benchmark",
    )
    options = parser.parse_args(words)
    options.only = [name for name in options.only.split(",") if name]
    unknown = [name for name in options.only if name not in PHASES]
    if unknown or not options.only:
        parser.error(f"no such phase: {', '.join(unknown)}" if unknown else "--only names no phase")
    if options.runs < 1:
        parser.error("--runs must be 1 at least")
    return options


def run(options: argparse.Namespace, say: Say) -> dict[str, Any]:
    """Measure. Returns the document, with the figures under ``figures``."""
    sizes, began, started = QUICK if options.quick else FULL, time.monotonic(), datetime.now(UTC)
    facts = machine.facts()
    warning = machine.busy_warning(os.getloadavg()[0], os.cpu_count() or 1)
    if warning:
        say(warning)
    say(f"rows are encoded by {facts['rows_are_encoded_by']}, and written to sinks by {facts['rows_are_written_by']}")
    # Its minutes are too few for the JVM's second compiler, whose work would be a third of the result.
    rig = Rig(options.stack, say=say, light=options.only == ["everyday"])
    runs: list[list[Figure]] = []
    details: list[dict[str, Any]] = []
    try:
        rig.up("postgres", "kafka")
        for number in range(1, options.runs + 1):
            figures: list[Figure] = []
            phase_details: dict[str, Any] = {}
            for name in options.only:
                say(f"--- {name}" + (f", run {number} of {options.runs}" if options.runs > 1 else ""))
                measured, facts_of_phase = PHASES[name](rig, sizes, say)
                figures += measured
                phase_details[name] = facts_of_phase | {"figures": [report.figure_json(figure) for figure in measured]}
            runs.append(figures + peer.beside(figures))
            details.append(phase_details)
    finally:
        # The end takes seconds and must not be interrupted, so that no process is left behind.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        say("stopping")
        rig.close()
    figures = median_run(runs)
    terminal = Console()
    # A file or a pipe has no width; the table must not be cut for it.
    out = terminal if terminal.is_terminal else Console(width=_TABLE_WIDTH)
    out.print(report.table(figures))
    for run_details in details:
        if "everyday" in run_details:
            out.print(everyday_figures.table(run_details["everyday"]))
    return report.document(
        figures,
        machine=facts,
        sizes=asdict(sizes),
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - began,
        runs=details,
    )


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(words: Sequence[str]) -> int:
    options = arguments(words)
    console = Console(stderr=True)
    began = time.monotonic()

    def say(sentence: str) -> None:
        console.print(f"{time.monotonic() - began:6.1f} s  {sentence}", markup=False, highlight=False, soft_wrap=True)

    # Also if a shell started us in the background, which makes SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        document = run(options, say)
    except (LockstepError, StackError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    text = json.dumps(document, indent=2) + "\n"
    RESULTS.mkdir(exist_ok=True)
    archived_document = RESULTS / f"{document['started'].replace(':', '')}.json"
    for path in (archived_document, options.json):
        if path is not None:
            path.write_text(text, encoding="utf-8")
            say(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
