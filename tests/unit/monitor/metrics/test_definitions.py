"""Names by Prometheus' conventions, and files that name only what there is."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitor.metrics.definitions import DEFINITIONS, Definition, Kind
from tests import metrics_files
from tests.programs import needs

_FUNCTIONS = {
    *("max", "sum", "count", "rate", "increase", "time", "histogram_quantile", "max_over_time", "absent_over_time"),
    *("by", "on", "or", "unless"),
}


@pytest.mark.parametrize("definition", list(DEFINITIONS.values()), ids=lambda definition: definition.name)
def test_a_name_says_its_unit_as_prometheus_has_it(definition: Definition) -> None:
    name = definition.name
    assert re.fullmatch(r"lockstep_[a-z_]+", name)
    assert name.endswith("_total") == (definition.kind is Kind.COUNTER)
    bare = name.removesuffix("_total")
    assert bare.endswith("_bytes") == (definition.unit == "By")
    assert bare.endswith("_seconds") == (definition.unit == "s")
    assert definition.help.endswith(".")


def test_the_docs_have_the_table_of_the_definitions() -> None:
    assert metrics_files.in_page() == metrics_files.rows()


def test_the_dashboard_is_the_one_that_its_panels_make() -> None:
    assert metrics_files.DASHBOARD.read_text(encoding="utf-8") == metrics_files.dashboard_text()


@pytest.mark.parametrize("expression", list(metrics_files.expressions()))
def test_an_expression_names_only_metrics_and_labels_that_there_are(expression: str) -> None:
    series = metrics_files.series()
    without_text = re.sub(r'"[^"]*"', '""', expression)
    named = set(re.findall(r"\b[a-z_]+[a-z]\b", re.sub(r"\[\d+[smh]\]", "", without_text)))
    metrics = {name for name in named if name.startswith(("lockstep_", "process_"))}
    assert metrics
    assert metrics <= series.keys()
    labels = named - metrics - _FUNCTIONS
    assert labels <= {label for metric in metrics for label in series[metric]} | {"instance", "job"}


_SEARCH = 'stage="applied",sink="search",generation="1"'
_RECEIVED = 'stage="received",sink="",generation=""'
_HERE = 'job="lockstep",instance="a:1"'


def _fired(alert: str, at: str, *labels: dict[str, str], summary: str | None = None) -> dict[str, Any]:
    """What one alert is at a time: firing with each of these labels."""
    annotations = _annotations(alert) | ({} if summary is None else {"summary": summary})
    fired = [{"exp_labels": each, "exp_annotations": annotations} for each in labels]
    return {"eval_time": at, "alertname": alert, "exp_alerts": fired}


def _judge(tmp_path: Path, series: dict[str, str], *expected: dict[str, Any]) -> None:
    """Have Prometheus' own tool run the rules over a series of samples, 15 s apart."""
    promtool = needs("promtool")
    cases = {
        "rule_files": [str(metrics_files.FILES / "rules.yml")],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": list(expected),
            }
        ],
    }
    path = tmp_path / "cases.yml"
    path.write_text(yaml.safe_dump(cases), encoding="utf-8")
    ran = subprocess.run([promtool, "test", "rules", path], check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_rules_are_rules() -> None:
    rules = metrics_files.FILES / "rules.yml"
    subprocess.run([needs("promtool"), "check", "rules", rules], check=True, capture_output=True)


def test_the_rules_fire_when_they_should(tmp_path: Path) -> None:
    stalled = {"severity": "critical", "stage": "applied", "sink": "search", "generation": "1", "state": "stalled"}
    _judge(
        tmp_path,
        {
            f'lockstep_stage_state{{{_SEARCH},state="stalled"}}': "0x8 1x40",
            f'lockstep_stage_state{{{_SEARCH},state="current"}}': "1x8 0x40",
            "lockstep_slot_full_seconds": "7200x8 600x40",
            'lockstep_open_rejections{sink="search",generation="1"}': "0x48",
            'lockstep_failed_tables{sink="search",generation="1"}': "0x8 1x40",
        },
        _fired("LockstepStageNeedsSomebody", "2m"),
        _fired("LockstepStageNeedsSomebody", "4m", stalled, summary="applied search is stalled"),
        _fired(
            "LockstepSlotIsNearlyFull",
            "8m",
            {"severity": "critical"},
            summary="The replication slot is lost in 10m 0s",
        ),
        _fired("LockstepRejections", "8m"),
        _fired("LockstepTableFailed", "2m"),
        _fired(
            "LockstepTableFailed",
            "8m",
            {"severity": "critical", "sink": "search", "generation": "1"},
            summary="Sink search goes on without 1 of its tables, which cannot be applied",
        ),
    )


def test_searches_that_nobody_is_told_of_are_told_of(tmp_path: Path) -> None:
    _judge(
        tmp_path,
        {
            'lockstep_searches_set_aside{sink="search"}': "0x8 2x40",
            'lockstep_searches_silent_seconds{sink="search"}': "0x8 70x40",
        },
        _fired("LockstepSearchSetAside", "2m"),
        _fired(
            "LockstepSearchSetAside",
            "8m",
            {"severity": "warning", "sink": "search"},
            summary="Nobody is told of 2 standing searches of sink search",
        ),
        _fired("LockstepSearchesSilent", "2m"),
        _fired(
            "LockstepSearchesSilent",
            "8m",
            {"severity": "critical", "sink": "search"},
            summary="Nobody tells of the standing searches of sink search",
        ),
    )


def test_a_view_that_builds_for_long_or_takes_much_disk_is_told_of(tmp_path: Path) -> None:
    view = {"severity": "warning", "sink": "totals", "generation": "1"}
    _judge(
        tmp_path,
        {
            'lockstep_view_building{sink="totals",generation="1"}': "0x8 1x400",
            'lockstep_view_state_bytes{sink="totals",generation="1"}': "1000x240 30000000000x200",
            'lockstep_view_building{sink="quick",generation="1"}': "1x200 0x400",
        },
        _fired("LockstepViewBuildsLong", "60m"),
        _fired("LockstepViewStateGrows", "60m"),
        _fired(
            "LockstepViewBuildsLong",
            "70m",
            view,
            summary="The state of view totals is being built for an hour",
        ),
        _fired(
            "LockstepViewStateGrows",
            "70m",
            view,
            summary="The state of view totals takes 27.94GiB of disk",
        ),
    )


def test_a_pipeline_that_nobody_looks_at_is_told_of(tmp_path: Path) -> None:
    """None was ever there, the page is gone, it hangs, or it is there and its looks get no answer."""
    nobody = {"severity": "critical"}
    _judge(tmp_path, {"lockstep_slot_active": "1x20"}, _fired("LockstepNobodyLooks", "2m", nobody))
    at_the_clock = "0+15x20"  # the time of each sample
    for after in ("", " 300x40", " _x40", " stale"):
        _judge(
            tmp_path,
            {f"lockstep_look_timestamp_seconds{{{_HERE}}}": at_the_clock + after},
            _fired("LockstepNobodyLooks", "5m"),
            _fired("LockstepNobodyLooks", "9m", nobody | {"job": "lockstep", "instance": "a:1"}),
        )
    gone = {f"lockstep_look_timestamp_seconds{{{_HERE}}}": at_the_clock}
    _judge(tmp_path, gone, _fired("LockstepNobodyLooks", "2h", nobody))


def test_stages_that_could_not_be_asked_are_told_of_once(tmp_path: Path) -> None:
    _judge(
        tmp_path,
        {
            f'lockstep_stage_state{{{_HERE},{_SEARCH},state="unknown"}}': "0x8 1x40",
            f'lockstep_stage_state{{{_HERE},{_RECEIVED},state="unknown"}}': "0x8 1x40",
        },
        _fired("LockstepStagesAreUnknown", "2m"),
        _fired(
            "LockstepStagesAreUnknown",
            "5m",
            {"severity": "critical", "job": "lockstep", "instance": "a:1"},
            summary="Nobody can tell how 2 stages are",
        ),
    )


@pytest.mark.parametrize("state", ["building", "paused", "absent"])
def test_nobody_has_to_read_the_slot_while_the_first_copy_is_made_or_paused(tmp_path: Path, state: str) -> None:
    fires = [{"severity": "critical", "job": "lockstep", "instance": "a:1"}] if state == "absent" else []
    _judge(
        tmp_path,
        {
            f"lockstep_slot_active{{{_HERE}}}": "0x40",
            f"lockstep_broken{{{_HERE}}}": "0x40",
            f'lockstep_stage_state{{{_HERE},{_RECEIVED},state="{state}"}}': "1x40",
            'lockstep_stage_state{job="lockstep",instance="b:1",stage="received",state="building"}': "1x40",
        },
        _fired("LockstepNobodyReadsTheSlot", "5m", *fires),
    )


def test_a_lost_slot_is_told_of_as_that_alone(tmp_path: Path) -> None:
    here = {"job": "lockstep", "instance": "a:1"}
    _judge(
        tmp_path,
        {f"lockstep_slot_active{{{_HERE}}}": "0x40", f"lockstep_broken{{{_HERE}}}": "1x40"},
        _fired("LockstepNobodyReadsTheSlot", "5m"),
        _fired("LockstepBroken", "5m", {"severity": "critical"} | here),
    )


def _annotations(alert: str) -> dict[str, str]:
    rules = yaml.safe_load((metrics_files.FILES / "rules.yml").read_text(encoding="utf-8"))
    (found,) = [rule for group in rules["groups"] for rule in group["rules"] if rule["alert"] == alert]
    annotations: dict[str, str] = found["annotations"]
    return annotations
