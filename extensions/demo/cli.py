"""``lockstep demo``."""

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.options import JsonOption


def demo(
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Stop the writer after so many seconds, compare, print the result.")
    ] = None,
    as_json: JsonOption = False,
    keep: Annotated[bool, typer.Option(help="Leave the local servers running at the end.")] = False,
    rate: Annotated[
        float, typer.Option(min=0.1, help="Most transactions per second that the sample application writes.")
    ] = 50.0,
    directory: Annotated[Path, typer.Option(help="Where the demo keeps its data and logs.")] = Path(".lockstep/demo"),
) -> None:
    """Run everything on this machine, with a sample shop.

    Starts the local servers, copies the shop's tables, captures its live traffic, applies it to the sinks and shows
    the lag.
    """
    if as_json and seconds is None:
        raise typer.BadParameter("--json needs --seconds: lockstep demo --seconds 60 --json")

    from extensions.demo.demo import run_demo

    raise typer.Exit(run_demo(seconds=seconds, as_json=as_json, keep=keep, directory=directory, rate=rate))
