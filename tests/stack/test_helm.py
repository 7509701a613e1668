"""The chart of ``deploy/helm``: what it renders to, by our own renderer, and by Helm where that is installed."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep.config import Config, PipelineSettings
from lockstep.dashboard_settings import TOKEN_VARIABLE, DashboardSettings
from tests.stack.helm_templates import Chart, Refused

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "deploy" / "helm" / "lockstep"
CONFIGURATION = '[pipeline]\nname = "shop"\n# a "quoted" {{ word }}\n'
GIVEN: Mapping[str, Any] = {"configuration": CONFIGURATION, "secretName": "lockstep"}
CASES: Mapping[str, Mapping[str, Any]] = {
    "as few values as there can be": GIVEN,
    "a standby and files": {
        **GIVEN,
        "capture": {"replicas": 2, "standby": True},
        "filesSecretName": "files",
        "imagePullSecrets": [{"name": "registry"}],
    },
    "alerts alone": {**GIVEN, "dashboard": {"enabled": False}, "alerts": {"enabled": True}},
}


def rendered(values: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    documents = Chart(DIRECTORY).render(values, release="shop")
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def pods(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        name: document["spec"]["template"]["spec"]
        for (kind, name), document in rendered(values).items()
        if kind == "StatefulSet"
    }


def arguments(values: Mapping[str, Any]) -> dict[str, list[str]]:
    return {name: pod["containers"][0]["args"] for name, pod in pods(values).items()}


@pytest.mark.parametrize("case", CASES)
def test_helm_renders_the_same(case: str, tmp_path: Path) -> None:
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm isn't installed here")
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(dict(CASES[case])))
    for command in (["lint", "--strict"], ["template", "shop"]):
        answer = subprocess.run(
            [helm, *command, str(DIRECTORY), "--values", str(file)], capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stderr + answer.stdout
    documents = [document for document in yaml.safe_load_all(answer.stdout) if document is not None]
    assert {(each["kind"], each["metadata"]["name"]): each for each in documents} == rendered(CASES[case])


def test_each_part_runs_its_command() -> None:
    end = ["--config", "/var/lib/lockstep/lockstep.toml"]
    assert arguments(CASES["a standby and files"]) == {
        "shop-capture": ["capture", *end, "--standby"],
        "shop-apply": ["apply", *end],
        "shop-dashboard": ["dashboard", *end],
    }
    assert arguments(CASES["alerts alone"]) == {
        "shop-capture": ["capture", *end],
        "shop-apply": ["apply", *end],
        "shop-alerts": ["alerts", "watch", *end],
    }


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"configuration": ""}, "the text of lockstep.toml"),
        ({"secretName": ""}, "the Secret whose keys"),
        ({"alerts": {"enabled": True}}, "the dashboard reports alerts already"),
        ({"capture": {"replicas": 2}}, "more than one needs capture.standby"),
    ],
)
def test_values_that_can_not_work_are_refused(changes: Mapping[str, Any], told: str) -> None:
    with pytest.raises(Refused, match=told):
        rendered({**GIVEN, **changes})


@pytest.mark.parametrize("case", CASES)
def test_no_pod_may_more_than_it_needs(case: str) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    for pod in pods(CASES[case]).values():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert f"--uid {pod['securityContext']['runAsUser']} " in dockerfile
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        volumes = {volume["name"] for volume in pod["volumes"]} | {"state"}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_what_the_configuration_has_by_default_is_on_a_volume() -> None:
    """Paths count from where the file is."""
    for pod in pods(GIVEN).values():
        mounts = {mount["name"]: Path(mount["mountPath"]) for mount in pod["containers"][0]["volumeMounts"]}
        base = mounts["configuration"].parent
        for defaults in (Config.model_fields["spark"].default, PipelineSettings(name="shop")):
            for name in type(defaults).model_fields:
                if name.endswith("directory"):
                    assert (base / getattr(defaults, name)).is_relative_to(mounts["state"]), name


def test_the_web_page_is_probed_where_the_values_say_that_it_listens() -> None:
    pod = pods(GIVEN)["shop-dashboard"]
    (container,) = pod["containers"]
    port = DashboardSettings().port
    assert container["ports"] == [{"name": "http", "containerPort": port}]
    assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness")} == {"/healthz"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert rendered(GIVEN)["Service", "shop-dashboard"]["spec"]["publishNotReadyAddresses"] is True
    said = (DIRECTORY / "values.yaml").read_text()
    assert f'dashboard.listen = "0.0.0.0:{port}"' in said
    assert TOKEN_VARIABLE in said


def test_the_configuration_gets_there_as_it_is_and_restarts_what_reads_it() -> None:
    assert rendered(GIVEN)["ConfigMap", "shop"]["data"] == {"lockstep.toml": CONFIGURATION}

    def annotations(text: str) -> list[Any]:
        sets = rendered({**GIVEN, "configuration": text}).items()
        return [
            each["spec"]["template"]["metadata"]["annotations"] for (kind, _), each in sets if kind == "StatefulSet"
        ]

    assert annotations("a") == annotations("a")
    assert all(one != other for one, other in zip(annotations("a"), annotations("b"), strict=True))
