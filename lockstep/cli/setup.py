"""Commands that set a pipeline up: ``init``, ``doctor`` and ``package``."""

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.options import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json


def init(
    dsn: Annotated[str, typer.Option(help="libpq connection string of the database, without a password.")],
    config: ConfigOption = DEFAULT_CONFIG,
    name: Annotated[str | None, typer.Option(help="Name of the pipeline; default the database's.")] = None,
    sink: Annotated[
        list[str] | None, typer.Option(help="NAME=ADDRESS of a sink, as search=https://search:9200; may be repeated.")
    ] = None,
) -> None:
    """Write a commented configuration for a database.

    Reads the database's catalogue and changes nothing in it.
    """
    from lockstep.console import say
    from lockstep.init import write_config

    for line in write_config(dsn=dsn, path=config, name=name, sinks=tuple(sink or ())):
        say(line)


def doctor(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Check source, Kafka and sinks. Changes nothing.

    Prints every finding with the exact SQL or setting that mends it. Exit code 1 when something would fail.
    """
    from lockstep.config import read
    from lockstep.doctor.display import findings_json, findings_text
    from lockstep.doctor.examine import examine, is_healthy
    from lockstep.terminal import out

    findings = examine(read(config))
    if as_json:
        print_json(findings_json(findings))
    else:
        out.print(findings_text(findings), soft_wrap=True)
    raise typer.Exit(0 if is_healthy(findings) else 1)


def package(
    environment: Annotated[
        bool, typer.Option("--environment", help="With the third-party packages, for executors like this machine.")
    ] = False,
) -> None:
    """Write the archive that a Spark cluster's executors need.

    It is lockstep-package.zip in this directory. spark.package in lockstep.toml names it.
    """
    from lockstep.console import say
    from lockstep.package import package as write_package

    written = write_package(Path("lockstep-package.zip"), environment=environment)
    say(f"wrote {written} ({written.stat().st_size / 1e6:.1f} MB)")
