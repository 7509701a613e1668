"""What is known of views and of a view's query, for people and programs. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text
from rich.tree import Tree

from cdc.model.lsn import format_lsn
from cdc.model.table import TableName
from cdc.model.times import time_text
from lockstep.views.check import Checked
from lockstep.views.status import Explained, ViewState, ViewStatus
from monitor.units import readable_bytes
from views.estimate import Estimate
from views.failures import Refusal
from views.figures import ViewFigures
from views.operators.stored_entries import Kept
from views.plan import ViewPlan
from views.plan_text import PlanStep, plan_steps
from views.sharding import whole_tables


def checked_json(checked: Checked) -> dict[str, Any]:
    """All of it. Numbers of rows and bytes are estimates."""
    plan, estimate = checked.plan, checked.estimate
    return {
        "can_be_kept": plan is not None,
        "refusals": [refusal_json(refusal) for refusal in checked.refusals],
        "key": list(checked.key),
        "tables": [] if plan is None else [str(table) for table in plan.tables],
        "columns": [] if plan is None else [name for name, _ in plan.outputs],
        "plan": None if plan is None else plan_json(plan, _estimated_json(estimate)),
        "not_analysed": [str(table) for table in checked.not_analysed],
        "estimate": None if estimate is None else _estimate_json(estimate),
    }


def refusal_json(refusal: Refusal) -> dict[str, str]:
    return {"clause": refusal.clause, "reason": refusal.reason, "remedy": refusal.remedy}


def plan_json(plan: ViewPlan, figures: Callable[[PlanStep], dict[str, Any]]) -> dict[str, Any]:
    """The plan's operators, each with its ``figures`` and the operators that its rows come from."""

    def of(step: PlanStep) -> dict[str, Any]:
        sources = [of(source) for source in step.sources]
        named = {"operator": step.operator, "text": step.text, "keeps": step.keeps or None}
        return {**named, **figures(step), "sources": sources}

    return of(plan_steps(plan))


def _estimated_json(estimate: Estimate | None) -> Callable[[PlanStep], dict[str, Any]]:
    def figures(step: PlanStep) -> dict[str, Any]:
        kept = None if estimate is None else estimate.operators[step.number]
        return {
            "rows": None if kept is None else round(kept.rows),
            "kept_rows": None if kept is None else round(kept.kept_rows),
            "kept_bytes": None if kept is None else round(kept.kept_bytes),
        }

    return figures


def _estimate_json(estimate: Estimate) -> dict[str, Any]:
    return {
        "rows": round(estimate.rows),
        "kept_rows": round(estimate.kept_rows),
        "kept_bytes": round(estimate.kept_bytes),
        "changes": [
            {
                "table": str(change.table),
                "rows": round(change.rows),
                "average": round(change.average, 3),
                "largest": round(change.largest),
            }
            for change in estimate.changes
        ],
        "assumed": list(estimate.assumed),
    }


def checked_text(checked: Checked) -> RenderableType:
    """For people: whether it can be kept, the plan, and the costs; or all reasons against it."""
    if checked.plan is None:
        count = len(checked.refusals)
        heading = f"this query can't be kept, for {'one reason' if count == 1 else f'{count} reasons'}"
        return Group(Text(heading, style="red"), *refusals_text(checked.refusals))
    parts: list[RenderableType] = [
        Text("this query can be kept", style="green"),
        Text(f"key: {', '.join(checked.key)}"),
        "",
        plan_tree(checked.plan, _estimated_text(checked.estimate)),
        "",
    ]
    if checked.estimate is not None:
        parts += [_changes_table(checked.estimate), *map(Text, _sentences(checked.estimate))]
    else:
        tables = ", ".join(table.sql for table in checked.not_analysed)
        parts += [Text("its costs can't be estimated: tables were never analysed"), Text(f"run: analyze {tables}")]
    return Group(*parts)


def refusals_text(refusals: Sequence[Refusal]) -> Iterator[RenderableType]:
    for refusal in refusals:
        yield Text(refusal.clause)
        yield Padding(Text(f"why: {refusal.reason}"), (0, 0, 0, 4), expand=False)
        yield Padding(Text(f"do: {refusal.remedy}"), (0, 0, 0, 4), expand=False)


def plan_tree(plan: ViewPlan, kept_text: Callable[[PlanStep], str]) -> Tree:
    """The operators, the last one first, each with what it stores, followed by ``kept_text``."""

    def grown(step: PlanStep, tree: Tree | None) -> Tree:
        label = Text(step.text)
        if step.keeps:
            label.append(f"\nkeeps {step.keeps}{kept_text(step)}", style="dim")
        branch = Tree(label) if tree is None else tree.add(label)
        for source in step.sources:
            grown(source, branch)
        return branch

    return grown(plan_steps(plan), None)


def _estimated_text(estimate: Estimate | None) -> Callable[[PlanStep], str]:
    def text(step: PlanStep) -> str:
        if estimate is None:
            return ""
        kept = estimate.operators[step.number]
        return f" (about {rows_text(kept.kept_rows)}, {readable_bytes(round(kept.kept_bytes))})"

    return text


def _changes_table(estimate: Estimate) -> RichTable:
    table = RichTable()
    table.add_column("a changed row of")
    for heading in ("its rows", "changes rows\nof the result", "at most"):
        table.add_column(heading, justify="right")
    for change in estimate.changes:
        table.add_row(
            Text(str(change.table)), number_text(change.rows), number_text(change.average), number_text(change.largest)
        )
    return table


def _sentences(estimate: Estimate) -> Iterator[str]:
    yield f"the result has about {rows_text(estimate.rows)}"
    yield f"the state has about {rows_text(estimate.kept_rows)}, {readable_bytes(round(estimate.kept_bytes))}"
    yield "these are estimates, from PostgreSQL's statistics of the tables (`analyze`)"
    if estimate.assumed:
        yield f"these columns have no statistics, so their values are assumed: {', '.join(estimate.assumed)}"


def rows_text(rows: float) -> str:
    """``1 row``, ``12,000 rows``."""
    return "1 row" if round(rows) == 1 else f"{round(rows):,} rows"


def number_text(number: float) -> str:
    """A number of rows, with a decimal if it is small."""
    if 0 < number < 0.05:
        return "< 0.1"
    return f"{number:.1f}" if number < 10 and round(number, 1) != round(number) else f"{round(number):,}"


# --- existing views ---


def views_table(statuses: Sequence[ViewStatus]) -> RenderableType:
    """For people: a row for each view, and below it a sentence for each that isn't kept."""
    table = RichTable()
    for heading in ("view", "sink", "key", "state"):
        table.add_column(heading)
    for heading in ("LSN", "rows", "state\nrows", "state\nbytes"):
        table.add_column(heading, justify="right")
    for status in statuses:
        figures = status.figures
        table.add_row(
            Text(status.label),
            Text(status.sink),
            Text(", ".join(status.settings.key)),
            Text(status.state.value, style="red" if status.needs_somebody else ""),
            "-" if status.lsn is None else format_lsn(status.lsn),
            "-" if figures is None or status.state is ViewState.BUILDING else f"{figures.rows:,}",
            "-" if figures is None else f"{figures.state_rows:,}",
            "-" if figures is None else readable_bytes(figures.state_bytes),
        )
    return Group(table, *_not_kept(statuses))


def _not_kept(statuses: Sequence[ViewStatus]) -> Iterator[Text]:
    for status in statuses:
        if status.sentence is not None:
            yield Text(status.sentence, style="red" if status.needs_somebody else "yellow")


def explained_json(explained: Explained) -> dict[str, Any]:
    def figures(step: PlanStep) -> dict[str, Any]:
        kept = None if explained.kept is None else explained.kept.get(step.number)
        return {"kept_rows": None if kept is None else kept.rows, "kept_bytes": None if kept is None else kept.bytes}

    return {
        **explained.status.to_json(),
        "sql": explained.status.settings.sql,
        "tables": [str(table) for table in explained.plan.tables],
        "sharded_by": None if explained.sharding is None else explained.sharding.key,
        "in_every_shard": [] if explained.sharding is None else list(map(str, _whole(explained))),
        "columns": [name for name, _ in explained.plan.outputs],
        "plan": plan_json(explained.plan, figures),
        "plan_without_figures": explained.why,
    }


def explained_text(explained: Explained) -> RenderableType:
    """For people: the plan with what each operator stores now, and what the view has done."""
    status = explained.status
    at = "" if status.lsn is None else f" at {format_lsn(status.lsn)}"
    parts: list[RenderableType] = [
        Text(f"{status.label} in sink {status.sink}: {status.state.value}{at}"),
        Text(f"key: {', '.join(status.settings.key)}"),
        *_sharding_text(explained),
        *_not_kept([status]),
        "",
        plan_tree(explained.plan, _kept_text(explained.kept)),
        "",
    ]
    if explained.why is not None:
        parts.append(Text(f"the rows that each operator keeps aren't known: {explained.why}", style="yellow"))
    if status.figures is not None:
        parts += map(Text, figures_sentences(status.figures, is_building=status.state is ViewState.BUILDING))
        if explained.plan.retained and status.figures.time_ms:
            parts.append(Text(f"rows are too old or not as of {time_text(status.figures.time_ms)}"))
    return Group(*parts)


def _sharding_text(explained: Explained) -> Iterator[Text]:
    if explained.sharding is not None:
        whole = ", ".join(map(str, _whole(explained)))
        kept = f"; each keeps all rows of {whole}" if whole else ""
        yield Text(f"{explained.status.settings.tasks} shards by {explained.sharding.key}{kept}")


def _whole(explained: Explained) -> tuple[TableName, ...]:
    return () if explained.sharding is None else whole_tables(explained.plan, explained.sharding)


def _kept_text(kept: Mapping[int, Kept] | None) -> Callable[[PlanStep], str]:
    def text(step: PlanStep) -> str:
        own = None if kept is None else kept.get(step.number)
        return "" if own is None else f" ({rows_text(own.rows)}, {readable_bytes(own.bytes)})"

    return text


def figures_sentences(figures: ViewFigures, *, is_building: bool = False) -> Iterator[str]:
    counters = figures.counters
    yield f"the result has {rows_text(figures.rows)}" + (" so far" if is_building else "")
    yield f"the state has {rows_text(figures.state_rows)} in {readable_bytes(figures.state_bytes)} of disk"
    if counters.steps:
        yield (
            f"since it was built, {counters.changes_in:,} changed rows of tables have changed"
            f" {counters.changes_out:,} of the result: {number_text(counters.amplification)} for each"
        )
        yield (
            f"a step takes {number_text(counters.transactions_per_step)} transactions and"
            f" {number_text(counters.rows_per_step)} rows, on average of {counters.steps:,} steps"
        )
