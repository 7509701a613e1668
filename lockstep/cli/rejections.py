"""Commands of rejections: ``list``, ``show``, ``retry`` and ``discard``.

They are events that a sink refused for good, and what an extension keeps so.
"""

import json
import time
from functools import partial
from typing import Annotated

import typer

from cdc.model.printable import visible_lines
from lockstep.cli.completion import rejecting_names, table_names
from lockstep.cli.options import DEFAULT_CONFIG, ConfigOption, JsonOption, agreed, may_ask, print_json

NameArgument = Annotated[
    str,
    typer.Argument(metavar="SINK", help="A sink, or another name that has rejections.", autocompletion=rejecting_names),
]
TableOption = Annotated[
    list[str] | None,
    typer.Option("--table", help="Only of this table, schema.table; may be repeated.", autocompletion=table_names),
]
GenerationOption = Annotated[int | None, typer.Option("--generation", min=1, help="Only of this generation.")]
KeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key", help="Only of this row: its key as JSON, or the one value of it, or partition:offset; may be repeated."
    ),
]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", help="Only those whose reason has this text in it; case doesn't matter.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All of the sink, or of the table and generation given.")]


def list_open(
    sink: Annotated[
        str | None,
        typer.Argument(metavar="[SINK]", help="Only of this name.", autocompletion=rejecting_names),
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    table: TableOption = None,
    generation: GenerationOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the rejections that are open.

    Shows keys and reasons, no other values.
    """
    from lockstep.config import load
    from lockstep.console import say
    from lockstep.rejections.open_records import OpenRecords
    from lockstep.rejections.output import rejections_json, rejections_table, unreadable_text
    from lockstep.rejections.selection import Selection
    from lockstep.terminal import out

    selection = Selection(tables=tuple(table or ()), generation=generation)
    loaded = load(config)
    open_records = OpenRecords(loaded)
    chosen, unreadable = open_records.read(sink, selection)
    if as_json:
        print_json(rejections_json(chosen, unreadable, open_records.tables))
        return
    if chosen:
        out.print(rejections_table(chosen, open_records.tables, time.time_ns() // 1_000_000))
    else:
        # One that was taken out of the configuration may have some all the same.
        is_known = sink is None or sink in loaded.stores
        what = f"no rejections of {sink}, which is no sink of this configuration"
        say("no rejections" if is_known else what)
    if unreadable:
        say(unreadable_text(unreadable))


def show(
    sink: NameArgument,
    row: Annotated[
        str,
        typer.Argument(metavar="KEY|POSITION", help="The row's key as in `list`, or its value, or partition:offset."),
    ],
    config: ConfigOption = DEFAULT_CONFIG,
    table: TableOption = None,
    generation: GenerationOption = None,
    value: Annotated[
        bool, typer.Option("--value", help="Print the whole event too, all columns of the row included.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show one rejection.

    Prints its event's value only with --value.
    """
    from lockstep.config import load
    from lockstep.rejections.open_records import OpenRecords
    from lockstep.rejections.output import rejection_json
    from lockstep.rejections.selection import Selection

    open_records = OpenRecords(load(config))
    dead_letter = open_records.single(sink, Selection(tables=tuple(table or ()), generation=generation, keys=(row,)))
    document = rejection_json(dead_letter, open_records.tables)
    if value:
        event = open_records.value(dead_letter)
        document["value"] = None if event is None else json.loads(event)
    if as_json:
        print_json(document)
        return
    for name, fact in document.items():
        text = fact if isinstance(fact, str) else json.dumps(fact, ensure_ascii=False)
        print(visible_lines(f"{name}: {text}"))  # noqa: T201  the result


def retry(
    sink: NameArgument,
    config: ConfigOption = DEFAULT_CONFIG,
    key: KeyOption = None,
    reason: ReasonOption = None,
    everything: AllOption = False,
    table: TableOption = None,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation", min=1, help="Of this generation; default the live one, and all where it isn't a sink."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Apply rejected events again. Safe while the job runs.

    Events keep their tags, so no row gets older. Closes those that are taken, and says why the others are refused.
    Exit code 1 when any is left.
    """
    from lockstep.config import load
    from lockstep.console import say
    from lockstep.rejections.open_records import captured_tables
    from lockstep.rejections.retried import retried_table
    from lockstep.rejections.retry import retry as retry_rejections
    from lockstep.rejections.selection import selection_of
    from lockstep.terminal import out

    selection = selection_of(tables=table, generation=generation, keys=key, reason=reason, everything=everything)
    settings = load(config)
    retried = retry_rejections(settings, sink, selection, say=say)
    if as_json:
        print_json(retried.to_json(captured_tables(settings)))
    else:
        if retried.refused:
            out.print(retried_table(retried, captured_tables(settings)))
        say(retried.sentence(sink))
    raise typer.Exit(1 if retried.refused else 0)


def discard(
    sink: NameArgument,
    config: ConfigOption = DEFAULT_CONFIG,
    key: KeyOption = None,
    reason: ReasonOption = None,
    everything: AllOption = False,
    table: TableOption = None,
    generation: GenerationOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Close rejections without applying them.

    The sink lacks these events until their rows are written again. Asks first.
    """
    from lockstep.config import load
    from lockstep.console import say
    from lockstep.rejections.discard import discard as discard_rejections
    from lockstep.rejections.selection import selection_of

    selection = selection_of(tables=table, generation=generation, keys=key, reason=reason, everything=everything)
    may_ask(yes=yes)
    raise typer.Exit(discard_rejections(load(config), sink, selection, agreed=partial(agreed, yes=yes), say=say))
