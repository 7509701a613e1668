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


_HERE = 'job="lockstep",instance="a:1"'


def _fired(alert: str, at: str, *labels: dict[str, str]) -> dict[str, Any]:
    """What one alert is at a time: firing with each of these labels."""
    fired = [{"exp_labels": each, "exp_annotations": _annotations(alert, each)} for each in labels]
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


def test_each_open_condition_fires_with_its_own_severity(tmp_path: Path) -> None:
    lag, lost = ({"condition": "lag", "subject": "cache"}, {"condition": "slot-lost", "subject": "capture"})
    open_lag, open_lost = lag | {"severity": "warning"}, lost | {"severity": "critical"}
    _judge(
        tmp_path,
        {
            'lockstep_condition{condition="lag",subject="cache",severity="warning"}': "_x8 1x8 _x40",
            'lockstep_condition{condition="slot-lost",subject="capture",severity="critical"}': "_x8 1x40",
        },
        _fired("LockstepCondition", "2m"),
        _fired("LockstepCondition", "3m", open_lag, open_lost),
        _fired("LockstepCondition", "9m30s", open_lost),
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


def _annotations(alert: str, labels: dict[str, str]) -> dict[str, str]:
    rules = yaml.safe_load((metrics_files.FILES / "rules.yml").read_text(encoding="utf-8"))
    (found,) = [rule for group in rules["groups"] for rule in group["rules"] if rule["alert"] == alert]
    return {
        name: re.sub(r"{{ \$labels\.(\w+) }}", lambda label: labels[label[1]], text)
        for name, text in found["annotations"].items()
    }
