"""What the demo shows while it runs. Pure: from facts to renderables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from extensions.demo.examples import Example
from extensions.demo.writer import Counts
from lockstep.verify.full_comparison import TableComparison
from monitor.lag import APPLIED, IN_KAFKA, READ, VISIBLE, LagReport, Stage
from monitor.lag_table import remarks

_WIDE: Final = 110
"""From this width on, the drawing shows each stage of a sink."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known now. ``lag`` is None until the servers have answered once. ``next`` is what happens next.
    ``trouble`` says which servers don't answer, "" if all do.
    """

    elapsed_s: float
    lag: LagReport | None
    next: str
    trouble: str
    counts: Counts
    transactions_per_s: float


def screen(facts: Facts, addresses: RenderableType, *, width: int) -> RenderableType:
    """The changing part and the addresses below it, for a terminal of this width; 24 lines at 80 columns."""
    parts: list[RenderableType] = [_headline(facts)]
    if facts.lag is not None:
        parts += [*drawing(facts.lag, width=width), *_remarks(facts.lag), *_rejected(facts.lag)]
    if facts.trouble:
        parts.append(Text(facts.trouble, style="yellow"))
    parts += [Text(f"next: {facts.next}", style="bold"), addresses, Text("Ctrl-C stops everything", style="dim")]
    return Group(*parts)


def drawing(lag: LagReport, *, width: int) -> Iterator[Text]:
    """The stages from left to right, with a line for each generation of a sink."""
    stages = {stage.name: stage for stage in lag.stages}
    sinks = [(stage.sink.label, stage) for stage in lag.stages if stage.sink is not None]
    is_wide = width >= _WIDE
    rail = "───" if is_wide else "─"
    before_capture = f"PostgreSQL {rail} "
    trunk = f"{before_capture}capture {rail} Kafka {rail}"
    under = [trunk, " " * len(before_capture) + _figures(stages.get(IN_KAFKA))]
    longest = max((len(label) for label, _ in sinks), default=0)
    shown = (READ, APPLIED, VISIBLE) if is_wide else (APPLIED,)
    heads = [part.strip(": ").rjust(9) for part in shown] if is_wide else ["behind".rjust(9)]
    blanks = " " * (len(trunk) + len(rail) + 3 + longest)
    yield Text(f"{blanks} {'state':8}{''.join(heads)}{'events':>9}", style="dim")
    for at in range(max(len(sinks), len(under))):
        left = (under[at] if at < len(under) else "").ljust(len(trunk))
        if at >= len(sinks):
            yield Text(left)
            continue
        label, stage = sinks[at]
        fork = _fork(at, len(sinks))
        line = Text(f"{left}{fork}{rail} {label:{longest}} ")
        line.append(f"{stage.state.value:8}", style="red" if stage.state.needs_somebody else "")
        line.append("".join(_seconds(stages.get(f"{part}{label}")).rjust(9) for part in shown))
        line.append(f"{_number(stage.events_behind):>9}")
        yield line


def _fork(at: int, count: int) -> str:
    if count == 1:
        return "─"
    return "┬" if at == 0 else "└" if at == count - 1 else "├"


def _figures(stage: Stage | None) -> str:
    return "" if stage is None else f"{stage.state.value} {_seconds(stage)}"


def _seconds(stage: Stage | None) -> str:
    return "-" if stage is None or stage.seconds_behind is None else f"{stage.seconds_behind:.1f} s"


def _number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _remarks(lag: LagReport) -> list[Text]:
    return [Text(remark.sentence, style=remark.style) for remark in remarks(lag) if remark.style != "dim"]


def links(addresses: Mapping[str, str], *, directory: Path, config: Path) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for name, address in [*addresses.items(), ("logs", f"{directory}/logs")]:
        style = f"link {address}" if address.startswith("http") else ""
        table.add_row(name, Text(address, style=style, overflow="fold"))
    table.add_row("commands", Text(f"lockstep lag --config {config}", overflow="fold"))
    return table


def queries(chosen: Sequence[Example], *, directory: Path) -> RenderableType:
    """The example queries, for printing once."""
    parts: list[RenderableType] = [""]
    for example in chosen:
        # A command is copied whole, so it must not be cut off; the terminal wraps it.
        parts += [Text(example.title, style="bold"), Text("$ " + example.command, overflow="fold"), ""]
    parts.append(
        Text(f"all three, without any client: python -m extensions.demo.examples --directory {directory}", style="dim")
    )
    return Group(*parts, "")


def _headline(facts: Facts) -> Text:
    counts = facts.counts
    text = Text("Lockstep demo", style="bold")
    written = f"{counts.transactions:,} transactions ({facts.transactions_per_s:.0f}/s)"
    text.append(f"  {facts.elapsed_s:.0f} s  {written}, {counts.keys_changed:,} primary keys changed", style="not bold")
    return text


def _rejected(lag: LagReport) -> list[RenderableType]:
    rejected = {name: count for name, count in lag.rejected.items() if count}
    if not rejected:
        return []
    return [Text("rejected: " + ", ".join(f"{name} {count}" for name, count in rejected.items()), style="bold red")]


def comparison_table(comparisons_by_sink: Mapping[str, Sequence[TableComparison]]) -> Table:
    """The result for people. It fits into 80 columns."""
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
