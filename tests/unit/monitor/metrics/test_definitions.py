"""Names by Prometheus' conventions, and files that name only what there is."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from monitor.metrics.definitions import DEFINITIONS, Definition, Kind
from tests import metrics_files
from tests.programs import needs

_FUNCTIONS = {"max", "sum", "rate", "increase", "time", "histogram_quantile"}


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
    labels = named - metrics - _FUNCTIONS - {"by"}
    assert labels <= {label for metric in metrics for label in series[metric]} | {"instance"}


def test_the_rules_are_rules_and_fire_when_they_should(tmp_path: Path) -> None:
    promtool = needs("promtool")
    rules = metrics_files.FILES / "rules.yml"
    subprocess.run([promtool, "check", "rules", rules], check=True, capture_output=True)
    stage = 'stage="applied",sink="search",generation="1"'
    cases = {
        "rule_files": [str(rules)],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [
                    {"series": f'lockstep_stage_state{{{stage},state="stalled"}}', "values": "0x8 1x40"},
                    {"series": f'lockstep_stage_state{{{stage},state="current"}}', "values": "1x8 0x40"},
                    {"series": "lockstep_slot_full_seconds", "values": "7200x8 600x40"},
                    {"series": 'lockstep_open_rejections{sink="search",generation="1"}', "values": "0x48"},
                ],
                "alert_rule_test": [
                    {"eval_time": "2m", "alertname": "LockstepStageNeedsSomebody", "exp_alerts": []},
                    {
                        "eval_time": "4m",
                        "alertname": "LockstepStageNeedsSomebody",
                        "exp_alerts": [
                            {
                                "exp_labels": {
                                    "severity": "critical",
                                    "stage": "applied",
                                    "sink": "search",
                                    "generation": "1",
                                    "state": "stalled",
                                },
                                "exp_annotations": _annotations("LockstepStageNeedsSomebody")
                                | {"summary": "applied search is stalled"},
                            }
                        ],
                    },
                    {
                        "eval_time": "8m",
                        "alertname": "LockstepSlotIsNearlyFull",
                        "exp_alerts": [
                            {
                                "exp_labels": {"severity": "critical"},
                                "exp_annotations": _annotations("LockstepSlotIsNearlyFull")
                                | {"summary": "The replication slot is lost in 10m 0s"},
                            }
                        ],
                    },
                    {"eval_time": "8m", "alertname": "LockstepRejections", "exp_alerts": []},
                ],
            }
        ],
    }
    path = tmp_path / "cases.yml"
    path.write_text(yaml.safe_dump(cases), encoding="utf-8")
    ran = subprocess.run([promtool, "test", "rules", path], check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _annotations(alert: str) -> dict[str, str]:
    rules = yaml.safe_load((metrics_files.FILES / "rules.yml").read_text(encoding="utf-8"))
    (found,) = [rule for group in rules["groups"] for rule in group["rules"] if rule["alert"] == alert]
    annotations: dict[str, str] = found["annotations"]
    return annotations
