"""Commands of views: ``list``, ``explain`` and ``check``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.cli.completion import view_names
from lockstep.cli.options import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json, text_of

if TYPE_CHECKING:
    from sinks.view_settings import RetainSettings


def list_all(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Show the views: the state of each, its rows, and what its state takes.

    Asks the stores. Exit code 1 when a view isn't kept.
    """
    from lockstep.config import load
    from lockstep.console import EXIT_FAILED, say
    from lockstep.terminal import out
    from lockstep.views.output import views_table
    from lockstep.views.status import views_now

    statuses = list(views_now(load(config)))
    if as_json:
        print_json([status.to_json() for status in statuses])
    elif statuses:
        out.print(views_table(statuses))
    else:
        say("this configuration has no views")
    if any(status.needs_somebody for status in statuses):
        raise typer.Exit(EXIT_FAILED)


def explain(
    view: Annotated[
        str, typer.Argument(metavar="VIEW", help="A view of the configuration.", autocompletion=view_names)
    ],
    config: ConfigOption = DEFAULT_CONFIG,
    generation: Annotated[
        int | None, typer.Option("--generation", min=1, help="This generation instead of the live one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a view's plan as a tree, with what each operator keeps now.

    Reads all of the view's state, which is on the machine of its job, and changes nothing.
    """
    from lockstep.config import load
    from lockstep.terminal import out
    from lockstep.views.output import explained_json, explained_text
    from lockstep.views.status import explain as explain_view

    explained = explain_view(load(config), view, generation)
    if as_json:
        print_json(explained_json(explained))
    else:
        out.print(explained_text(explained))


def check(
    config: ConfigOption = DEFAULT_CONFIG,
    sql: Annotated[str | None, typer.Option(help="The query.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file with the query; - is standard input.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Columns that identify the result's rows, as a,b; default the fewest.")
    ] = None,
    retain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE.COLUMN=AGE",
            help="Only rows of a table that aren't older, as hits.at=90d or hits.at=12h; may be given several times.",
        ),
    ] = None,
    dsn: Annotated[
        str | None, typer.Option(help="libpq connection string of a database instead of the configuration's source.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a query can be kept as a view, and what it would cost.

    Reads the database's catalogue and statistics, no rows, and changes nothing. With --dsn no configuration is needed,
    and every table with a key counts as captured. Exit code 1 when the query can't be kept.
    """
    from jobs.query.view_plan import retained_rows
    from lockstep.config import read
    from lockstep.doctor.patterns import choose_tables
    from lockstep.terminal import out
    from lockstep.views.check import Question, check_configured, check_database
    from lockstep.views.output import checked_json, checked_text

    if (sql is None) == (file is None):
        raise typer.BadParameter("name the query with one of --sql and --file")
    text = sql if sql is not None else text_of(file or Path("-"))
    question = Question(text, _names(key), tuple(retained_rows([_retain(each) for each in retain or ()])))
    if dsn is None:
        checked = check_configured(choose_tables(read(config)).config, question)
    else:
        checked = check_database(dsn, question)
    if as_json:
        print_json(checked_json(checked))
    else:
        out.print(checked_text(checked))
    raise typer.Exit(0 if checked.plan is not None else 1)


def _retain(text: str) -> "RetainSettings":
    """``[schema.]table.column=<days>d<hours>h``. Raises BadParameter."""
    from pydantic import ValidationError

    from sinks.view_settings import RetainSettings

    place, _, age = text.rpartition("=")
    table, _, column = place.rpartition(".")
    if not table:
        raise typer.BadParameter(f"--retain {text}: name a table, its column and an age, as hits.at=90d or hits.at=12h")
    try:
        return RetainSettings(table=table.strip(), column=column.strip(), age=age.strip())
    except ValidationError as error:
        problems = "; ".join(each["msg"].removeprefix("Value error, ") for each in error.errors())
        raise typer.BadParameter(f"--retain {text}: {problems}") from error


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name for part in (text or "").split(",") if (name := part.strip()))
