"""The bill of materials has all that is locked, and the files about rights name all that is vendored."""

import json
import re
import subprocess
import sys

from stack.environment import LOCK, ROOT, entries

VENDORED = ROOT / "lockstep" / "dashboard" / "static" / "vendor"


def test_the_bill_of_materials_has_every_package_and_the_jars_that_run() -> None:
    done = subprocess.run([sys.executable, "-m", "stack.sbom"], cwd=ROOT, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    found = {component["purl"] for component in document["components"]}
    assert len(found) == len(document["components"])
    assert {f"pkg:pypi/{pin.replace('==', '@')}" for pin in entries(LOCK)} <= found
    assert any(url.startswith("pkg:maven/org.apache.kafka/kafka_2.13@") for url in found)
    assert document["metadata"]["component"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]


def test_the_notice_names_every_vendored_file() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    files = {path.name for path in VENDORED.iterdir() if path.suffix != ".lock"}
    assert {name for name in files if name not in notice} == set()


def test_the_license_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert re.search(r"Apache License\s+Version 2\.0, January 2004", text)
    assert "END OF TERMS AND CONDITIONS" in text
