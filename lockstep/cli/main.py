"""The ``lockstep`` command: joins the groups of commands, and turns every ending into an exit code."""

import faulthandler
import io
import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lockstep.cli import operate, rejections, run, servers, setup, tables, views
from lockstep.console import EXIT_CONFIGURATION, EXIT_INTERRUPTED, SUPERVISOR_VARIABLE, exit_code_of, say
from lockstep.extension import Command, Group, installed

PROGRAM = "lockstep"

_WHOLE_SENTENCE = 1_000
"""The first sentence of a command's help is never cut: a narrow terminal wraps it."""

_CORE: Mapping[str, Sequence[Command]] = {
    "Local servers": (servers.up, servers.status, servers.down),
    "Set up": (setup.init, setup.doctor, setup.package),
    "Run": (run.run, run.capture, run.apply, run.dashboard),
    "Operate": (
        operate.lag,
        operate.wait,
        operate.tail,
        operate.state,
        operate.bundle,
        operate.verify,
        operate.rebuild,
        operate.switch,
        operate.generations,
        operate.pause,
        operate.resume,
        operate.take_out,
        run.recover,
    ),
}
COMMANDS: Mapping[str, Sequence[Command]] = {
    title: [*commands, *(command for each in installed() for command in each.commands.get(title, ()))]
    for title, commands in _CORE.items()
}
"""Title of a group in ``lockstep --help`` -> its commands, in the order of the page."""

GROUPS: Sequence[Group] = (
    Group(
        "snapshot",
        "Copies of tables. `lockstep capture` takes the first by itself.",
        {
            "table": operate.snapshot_table,
            "status": operate.snapshot_status,
            "pause": operate.snapshot_pause,
            "resume": operate.snapshot_resume,
            "cancel": operate.snapshot_cancel,
        },
    ),
    Group(
        "rejections",
        "Events and rows that were refused for good.\n\n"
        "A rejection closes by itself once its row gets through, or a newer event of it.",
        {
            "list": rejections.list_open,
            "show": rejections.show,
            "retry": rejections.retry,
            "discard": rejections.discard,
        },
    ),
    Group(
        "views",
        "Queries over captured tables whose results are kept up to date.",
        {"list": views.list_all, "explain": views.explain, "check": views.check},
    ),
    Group("tables", "Tables that capture has.", {"remove": tables.remove}),
    *(group for each in installed() for group in each.groups),
)
"""Commands below a word of their own, after those of their page."""


class GroupedCommands(TyperGroup):
    """Lists its commands under the title of their group. Without a title they are listed under ``Commands``."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [self.commands[name] for name in self.list_commands(ctx)]
        titles = [getattr(command, "rich_help_panel", None) or "Commands" for command in commands]
        for title in dict.fromkeys(titles):
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (command.name, command.get_short_help_str(_WHOLE_SENTENCE))
                        for command, of in zip(commands, titles, strict=True)
                        if of == title
                    ]
                )


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"{PROGRAM} {version(PROGRAM)}, Python {platform.python_version()}")  # noqa: T201  the result
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """PostgreSQL changes, in order, on Kafka, applied to OpenSearch, Redis, SQL warehouses and Delta tables."""
    _help_without_a_command(context)


def _help_without_a_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        say(context.get_help())
        raise typer.Exit(EXIT_CONFIGURATION)


def _group(
    callback: Callable[[typer.Context], None] | Callable[[typer.Context, bool], None],
    page: str | None = None,
    *,
    add_completion: bool = False,
) -> typer.Typer:
    return typer.Typer(
        cls=GroupedCommands,
        callback=callback,
        help=page,
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        add_completion=add_completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def _app() -> typer.Typer:
    root = _group(_root, add_completion=True)
    for title, commands in COMMANDS.items():
        for command in commands:
            root.command(rich_help_panel=title)(command)
    for group in GROUPS:
        below = _group(_help_without_a_command, group.help)
        for name, command in group.commands.items():
            below.command(name)(command)
        root.add_typer(below, name=group.name, rich_help_panel="Operate")
    return root


app = _app()


def main() -> None:
    """Entry point of the ``lockstep`` command."""
    # kill -USR1 prints where every thread of a command is that seems to hang. The traces hold code, no values.
    faulthandler.register(signal.SIGUSR1)
    if SUPERVISOR_VARIABLE in os.environ:
        from lockstep.supervisor import end_with_supervisor

        end_with_supervisor(int(os.environ.pop(SUPERVISOR_VARIABLE)))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may have letters that the terminal's encoding lacks
    sys.exit(exit_code(sys.argv[1:]))


def exit_code(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name.

    Returns 0 when it is done, 1 when it failed, 2 when the call or the configuration is wrong, 130 after Ctrl-C.
    Raises SystemExit with 1 when whoever read the output has gone.
    """
    return exit_code_of(lambda: _invoke(arguments))


def _invoke(arguments: Sequence[str]) -> int:
    try:
        result = app(list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except typer.TyperException as error:
        say(_usage_error(error))
        return EXIT_CONFIGURATION
    except typer.Abort:  # Ctrl-C or the end of input where a question is asked
        return EXIT_INTERRUPTED
    return result if isinstance(result, int) else 0


def _usage_error(error: typer.TyperException) -> str:
    """What is wrong with the call, and where its help is."""
    message = error.format_message().replace("Value error, ", "")
    sentence = f"error: {message[:1].lower()}{message[1:]}"
    context = getattr(error, "ctx", None)
    if context is None:  # typer leaves out the command where an option lacks its value
        return f"{sentence}\nsee `{PROGRAM} --help`"
    pieces = " ".join(context.command.collect_usage_pieces(context))
    return f"{sentence}\nusage: {context.command_path} {pieces}\nsee `{context.command_path} --help`"
