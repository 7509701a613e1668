"""What is known of a view's query, for people and programs. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text
from rich.tree import Tree

from lockstep.views.check import Checked
from monitor.units import readable_bytes
from views.estimate import Estimate, Kept
from views.failures import Refusal
from views.plan import ViewPlan
from views.plan_text import PlanStep, plan_steps


def checked_json(checked: Checked) -> dict[str, Any]:
    """The whole of it. Numbers of rows and bytes are estimates."""
    plan, estimate = checked.plan, checked.estimate
    return {
        "can_be_kept": plan is not None,
        "refusals": [refusal_json(refusal) for refusal in checked.refusals],
        "key": list(checked.key),
        "tables": [] if plan is None else [str(table) for table in plan.tables],
        "columns": [] if plan is None else [name for name, _ in plan.outputs],
        "plan": None if plan is None else plan_json(plan, estimate),
        "not_analysed": [str(table) for table in checked.not_analysed],
        "estimate": None if estimate is None else _estimate_json(estimate),
    }


def refusal_json(refusal: Refusal) -> dict[str, str]:
    """One reason against a query."""
    return {"clause": refusal.clause, "reason": refusal.reason, "remedy": refusal.remedy}


def plan_json(plan: ViewPlan, estimate: Estimate | None) -> dict[str, Any]:
    """The plan's operators, each with those that its rows come from."""

    def of(step: PlanStep) -> dict[str, Any]:
        kept = None if estimate is None else estimate.operators[step.number]
        return {
            "operator": step.operator,
            "text": step.text,
            "keeps": step.keeps or None,
            "rows": None if kept is None else round(kept.rows),
            "kept_rows": None if kept is None else round(kept.kept_rows),
            "kept_bytes": None if kept is None else round(kept.kept_bytes),
            "sources": [of(source) for source in step.sources],
        }

    return of(plan_steps(plan))


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
        plan_tree(checked.plan, checked.estimate),
        "",
    ]
    if checked.estimate is not None:
        parts += [_changes_table(checked.estimate), *map(Text, _sentences(checked.estimate))]
    else:
        tables = ", ".join(table.sql for table in checked.not_analysed)
        parts += [Text("its costs can't be estimated: tables were never analysed"), Text(f"run: analyze {tables}")]
    return Group(*parts)


def refusals_text(refusals: Sequence[Refusal]) -> Iterator[RenderableType]:
    """A paragraph for each."""
    for refusal in refusals:
        yield Text(refusal.clause)
        yield Padding(Text(f"why: {refusal.reason}"), (0, 0, 0, 4), expand=False)
        yield Padding(Text(f"do: {refusal.remedy}"), (0, 0, 0, 4), expand=False)


def plan_tree(plan: ViewPlan, estimate: Estimate | None) -> Tree:
    """The operators, the last one first, each with what it keeps."""

    def grown(step: PlanStep, tree: Tree | None) -> Tree:
        label = Text(step.text)
        if step.keeps:
            kept = "" if estimate is None else _kept_text(estimate.operators[step.number])
            label.append(f"\nkeeps {step.keeps}{kept}", style="dim")
        branch = Tree(label) if tree is None else tree.add(label)
        for source in step.sources:
            grown(source, branch)
        return branch

    return grown(plan_steps(plan), None)


def _kept_text(kept: Kept) -> str:
    return f" (about {rows_text(kept.kept_rows)}, {readable_bytes(round(kept.kept_bytes))})"


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
    yield "these are estimates, from what PostgreSQL's `analyze` has noted of the tables"
    if estimate.assumed:
        yield f"nothing was noted of these columns, so that their values are assumed: {', '.join(estimate.assumed)}"


def rows_text(rows: float) -> str:
    """``1 row``, ``12,000 rows``."""
    return "1 row" if round(rows) == 1 else f"{round(rows):,} rows"


def number_text(number: float) -> str:
    """A number of rows, with a decimal where it is small."""
    if 0 < number < 0.05:
        return "< 0.1"
    return f"{number:.1f}" if number < 10 and round(number, 1) != round(number) else f"{round(number):,}"
