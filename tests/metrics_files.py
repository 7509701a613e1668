"""Grafana's dashboard and the docs' table of metrics, made from the definitions by `python -m tests.metrics_files`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.extension import installed
from monitor.metrics.definitions import DEFINITIONS, Definition, Kind, Part
from tests.docs.generated import DOCS, ROOT, lines_between, write_between

FILES = ROOT / "monitor" / "metrics" / "files"
DASHBOARD = FILES / "grafana.json"
_PAGE = DOCS / "metrics.md"
_BEGIN, _END = "<!-- metrics: tests/metrics_files.py -->", "<!-- end of metrics -->"

_SINK = "{{sink}} {{generation}}"

ROWS: tuple[tuple[str, tuple[tuple[str, str, str, str], ...]], ...] = (
    (
        "Lag",
        (
            ("Behind, in seconds", "s", "lockstep_stage_behind_seconds", "{{stage}} " + _SINK),
            ("Behind, in WAL", "bytes", "lockstep_stage_behind_bytes", "{{stage}} " + _SINK),
            ("Behind, in records", "short", "lockstep_stage_behind_events", "{{stage}} " + _SINK),
            (
                "Stages that need somebody",
                "short",
                'lockstep_stage_state{state=~"stalled|stopped|silent|unknown"} == 1',
                "{{stage}} " + _SINK + ": {{state}}",
            ),
        ),
    ),
    (
        "Source",
        (
            ("WAL that the slot keeps", "bytes", "lockstep_slot_retained_bytes", "kept"),
            ("Until the slot is lost", "s", "lockstep_slot_full_seconds", "left"),
            ("WAL written", "Bps", "lockstep_wal_bytes_per_second", "written"),
        ),
    ),
    (
        "Capture",
        (
            ("Published", "cps", "sum by (topic) (rate(lockstep_capture_records_published_total[1m]))", "{{topic}}"),
            (
                "Commit of a Kafka transaction, p99",
                "s",
                "histogram_quantile(0.99, sum by (le) (rate(lockstep_capture_commit_seconds_bucket[5m])))",
                "p99",
            ),
            ("Copied rows", "cps", "sum by (table) (rate(lockstep_capture_copied_rows_total[1m]))", "{{table}}"),
            ("Memory", "bytes", "process_resident_memory_bytes", "{{job}} {{instance}}"),
        ),
    ),
    (
        "Stream queries",
        (
            ("Rows written a second", "short", "rate(lockstep_stream_query_results_total[5m])", _SINK),
            ("Late events a second", "short", "rate(lockstep_stream_query_late_total[5m])", _SINK),
            ("Malformed records a second", "short", "rate(lockstep_stream_query_malformed_total[5m])", _SINK),
            ("Refused rows a second", "short", "rate(lockstep_stream_query_refused_total[5m])", _SINK),
            ("Kept rows", "short", "lockstep_stream_query_state_rows", _SINK),
            ("Read, without a result yet", "short", "lockstep_stream_query_in_hand_events", _SINK),
            (
                "Queries that need somebody",
                "short",
                'lockstep_stream_query_job{state=~"stopped|silent|unknown"} == 1',
                _SINK + ": {{state}}",
            ),
            ("Watermark", "dateTimeAsIso", "lockstep_stream_query_watermark_timestamp_seconds * 1000", _SINK),
        ),
    ),
    (
        "Views",
        (
            ("Rows of the result", "short", "lockstep_view_rows", _SINK),
            ("Size of the state", "bytes", "lockstep_view_state_bytes", _SINK),
            (
                "Rows of the result that change with one of a table",
                "short",
                "rate(lockstep_view_changes_out_total[5m]) / rate(lockstep_view_changes_in_total[5m])",
                _SINK,
            ),
            (
                "Transactions in a step",
                "short",
                "rate(lockstep_view_transactions_total[5m]) / rate(lockstep_view_steps_total[5m])",
                _SINK,
            ),
            (
                "Built",
                "percentunit",
                "lockstep_view_built_ratio",
                _SINK,
            ),
        ),
    ),
    (
        "Sinks",
        (
            ("Applied", "cps", "rate(lockstep_sink_rows_applied_total[1m])", _SINK),
            ("Rejected", "cps", "rate(lockstep_sink_rows_rejected_total[5m])", _SINK),
            (
                "Batch, p99",
                "s",
                "histogram_quantile(0.99, sum by (le, sink) (rate(lockstep_sink_batch_seconds_bucket[5m])))",
                "{{sink}}",
            ),
            ("Age of the watermark", "s", "time() - lockstep_sink_watermark_timestamp_seconds", _SINK),
            ("Open rejections", "short", "lockstep_open_rejections", _SINK),
            ("Tables that can't be applied", "short", "lockstep_failed_tables", _SINK),
            ("Searches that are refused", "short", "lockstep_searches_refused", "{{sink}}"),
        ),
    ),
)
"""Title of a row -> its panels: title, Grafana's unit, expression, legend."""


def definitions() -> list[Definition]:
    return [*DEFINITIONS.values(), *(definition for each in installed() for definition in each.metrics())]


def dashboard() -> dict[str, Any]:
    """Grafana's document. Its data source is chosen when it is imported."""
    return {
        "__inputs": [{"name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource", "pluginId": "prometheus"}],
        "uid": "lockstep",
        "title": "Lockstep",
        "tags": ["lockstep"],
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    top, number = 0, 1
    for title, panels in ROWS:
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"h": 1, "w": 24, "x": 0, "y": top},
        }
        number, top = number + 1, top + 1
        for index, (name, unit, expression, legend) in enumerate(panels):
            yield {
                "id": number,
                "type": "timeseries",
                "title": name,
                "datasource": {"type": "prometheus", "uid": "${DS_PROMETHEUS}"},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "gridPos": {"h": 8, "w": 12, "x": 12 * (index % 2), "y": top + 8 * (index // 2)},
                "targets": [{"refId": "A", "expr": expression, "legendFormat": legend}],
            }
            number += 1
        top += 8 * ((len(panels) + 1) // 2)


def dashboard_text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


def rows() -> list[str]:
    """The lines of the docs' tables, one table for each process."""
    lines: list[str] = []
    for part in Part:
        lines += ["", f"| of {part.value} | meaning |", "| --- | --- |"]
        for definition in definitions():
            if definition.part is part:
                labels = f"{{{', '.join(definition.labels)}}}" if definition.labels else ""
                lines.append(f"| `{definition.name}`{labels} | {definition.help} |")
    return lines[1:]


def in_page() -> list[str]:
    return lines_between(_PAGE, _BEGIN, _END)


def expressions() -> Iterator[str]:
    import yaml

    for _, panels in ROWS:
        yield from (expression for _, _, expression, _ in panels)
    rules = yaml.safe_load((FILES / "rules.yml").read_text(encoding="utf-8"))
    for group in rules["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def series() -> dict[str, tuple[str, ...]]:
    """Every name that Prometheus stores -> its labels."""
    names: dict[str, tuple[str, ...]] = {"process_resident_memory_bytes": ()}
    for definition in definitions():
        if definition.kind is Kind.HISTOGRAM:
            names |= {f"{definition.name}_{end}": definition.labels for end in ("sum", "count")}
            names[f"{definition.name}_bucket"] = ("le", *definition.labels)
        else:
            names[definition.name] = definition.labels
    return names


def path() -> Path:
    return _PAGE


if __name__ == "__main__":
    DASHBOARD.write_text(dashboard_text(), encoding="utf-8")
    write_between(_PAGE, _BEGIN, _END, rows())
