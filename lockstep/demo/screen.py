"""What the demo shows while it runs. Pure: facts in, something to print out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lockstep.demo.examples import Example
from lockstep.demo.writer import Counts
from lockstep.verify.full_comparison import TableComparison
from monitor.lag import LagReport
from monitor.table import lag_table


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known now. ``lag`` is None until the servers have answered once; ``waiting`` says what for."""

    elapsed_s: float
    remaining_s: float | None
    lag: LagReport | None
    waiting: str
    counts: Counts
    transactions_per_s: float


def screen(facts: Facts) -> RenderableType:
    """What changes all the time; little enough for a small terminal."""
    parts: list[RenderableType] = [_headline(facts)]
    if facts.lag is not None:
        parts += [lag_table(facts.lag), *_rejected(facts.lag)]
    parts.append(_traffic(facts))
    if facts.waiting:
        parts.append(Text(facts.waiting, style="yellow"))
    parts.append(Text("Ctrl-C stops everything", style="dim"))
    return Group(*parts)


def links(addresses: Mapping[str, str], *, directory: Path, config: Path) -> RenderableType:
    """Where everything is. Printed once, so that it can be scrolled back to and copied."""
    table = Table.grid(padding=(0, 2))
    for name, address in [*addresses.items(), ("configuration", str(config)), ("logs", f"{directory}/logs")]:
        style = f"link {address}" if address.startswith("http") else ""
        table.add_row(name, Text(address, style=style, overflow="fold"))
    hint = f"the other commands take it too: lockstep lag --config {config}"
    return Group("", table, Text(hint, style="dim", overflow="fold"), "")


def queries(chosen: Sequence[Example], *, directory: Path) -> RenderableType:
    """The example queries, printed once as well."""
    parts: list[RenderableType] = [""]
    for example in chosen:
        # A command is copied whole, so it may not be cut off; a terminal wraps it.
        parts += [Text(example.title, style="bold"), Text("$ " + example.command, overflow="fold"), ""]
    parts.append(
        Text(f"all three, without any client: python -m lockstep.demo.examples --directory {directory}", style="dim")
    )
    return Group(*parts, "")


def _headline(facts: Facts) -> Text:
    text = Text("Lockstep demo", style="bold")
    text.append(f"   {facts.elapsed_s:.0f} s", style="dim")
    if facts.remaining_s is not None:
        text.append(f"   the writer stops in {max(0.0, facts.remaining_s):.0f} s", style="dim")
    return text


def _rejected(lag: LagReport) -> list[RenderableType]:
    rejected = {name: count for name, count in lag.rejected.items() if count}
    if not rejected:
        return []
    return [Text("rejected: " + ", ".join(f"{name} {count}" for name, count in rejected.items()), style="bold red")]


def _traffic(facts: Facts) -> Text:
    counts = facts.counts
    return Text(
        f"written: {counts.transactions:,} transactions ({facts.transactions_per_s:.0f}/s),"
        f" {counts.inserted:,} inserts, {counts.updated:,} updates, {counts.deleted:,} deletes,"
        f" {counts.keys_changed:,} primary keys changed, {counts.rolled_back:,} rolled back"
    )


def comparison_table(comparisons_by_sink: Mapping[str, Sequence[TableComparison]]) -> Table:
    """The result for people. It fits into 80 characters."""
    table = Table(title="every row of every sink and view against the source", title_justify="left")
    for heading in ("sink", "table", "source\nrows", "sink\nrows", "result"):
        table.add_column(heading, justify="right" if heading.endswith("rows") else "left")
    for sink, comparisons in comparisons_by_sink.items():
        for comparison in comparisons:
            table.add_row(
                sink,
                str(comparison.table),
                f"{comparison.source_rows:,}",
                f"{comparison.sink_rows:,}",
                _result(comparison),
            )
    return table


def _result(comparison: TableComparison) -> Text:
    if comparison.is_equal:
        return Text("equal", style="green")
    found = {
        "missing": comparison.missing.count,
        "extra": comparison.extra.count,
        "different": comparison.different.count,
    }
    words = ", ".join(f"{count:,} {what}" for what, count in found.items() if count)
    columns = f" ({', '.join(comparison.columns)})" if comparison.columns else ""
    return Text(f"NOT EQUAL: {words}{columns}", style="bold red")
