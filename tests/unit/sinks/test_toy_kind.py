"""A kind of sink is one package and one line of the registry: a kind that is new is treated like the others."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

_KIND = """
from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from sinks.kind import SinkKind
from sinks.memory import MemoryStore, open_memory
from sinks.table_settings import TableSettings

STORE = MemoryStore()


class ToySettings(TableSettings):
    type: Literal["toy"] = "toy"
    url: SecretStr
    ca_file: Path | None = None
    TLS_ADDRESS = "let the address begin with toys"

    @property
    def address(self):
        return self.url.get_secret_value()

    def plain_addresses(self):
        return [self.address] if self.address.startswith("toy:") else []

    def certificate_files(self):
        return [self.ca_file]


KIND = SinkKind(
    settings=ToySettings,
    open=lambda name, settings, generation: open_memory(STORE, generation),
    client="json",
    address_setting="url = {address}",
    schemes=("toy", "toys"),
    example="# [sinks.toys]\\\\n# type = \\"toy\\"\\\\n# url = \\"toys://box\\"   # where the toys are\\\\n",
)
""".replace("\\\\", "\\")

_USE = """
import json
import tomllib
from pathlib import Path

from lockstep.config import read
from lockstep.doctor.encryption import encryption_findings
from lockstep.init_examples import NewSink
from monitor.condition_facts import certificates_of
from sinks.registry import KINDS, definition, load_client, open_sink, with_definition
from tests.builders import batch, table, upsert

section = NewSink.parse("box=toy://elsewhere:7").section(["public.orders.note"])
Path("lockstep.toml").write_text(
    '[pipeline]\\nname = "shop"\\n[source]\\ndsn = "dbname=shop"\\ntables = ["public.orders"]\\n'
    '[kafka]\\nbootstrap_servers = "localhost:9092"\\n' + section + 'ca_file = "ca.pem"\\n'
)
config = read(Path("lockstep.toml"))
settings = config.sinks["box"]
load_client(settings)
opened = open_sink("box", settings, 1)
sink = opened.sink
sink.prepare([table()])
sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
print(json.dumps({
    "type": settings.type,
    "exclude": settings.exclude,
    "address": settings.address,
    "same": with_definition(settings, definition(settings)) == settings,
    "rows": [row.row for row in open_sink("box", settings, 1).sink.scan(table())],
    "doctor": [[each.subject, each.fix] for each in encryption_findings(config)],
    "certificates": [Path(name).name for name in certificates_of(config.as_pipeline(), config.sinks)],
    "able": [name for name in ("bulk", "erasing", "identities", "refreshing", "whole") if getattr(opened, name)],
    "example": tomllib.loads(KINDS["toy"].example.replace("# ", "", 3)),
}, default=str))
"""


def test_a_new_kind_is_one_package_and_one_line(tmp_path: Path) -> None:
    for package in ("cdc", "snapshot", "views", "jobs", "monitor", "lockstep", "migrations", "stack", "tests"):
        (tmp_path / package).symlink_to(ROOT / package)
    shutil.copytree(ROOT / "sinks", tmp_path / "sinks", ignore=shutil.ignore_patterns("__pycache__"))
    toy = tmp_path / "sinks" / "toy"
    toy.mkdir()
    (toy / "__init__.py").touch()
    (toy / "kind.py").write_text(_KIND)
    registry = tmp_path / "sinks" / "registry.py"
    known = registry.read_text()
    known = known.replace(
        "from sinks.view_settings", "from sinks.toy.kind import KIND as TOY\nfrom sinks.view_settings"
    )
    registry.write_text(known.replace("WAREHOUSE, DELTA)", "WAREHOUSE, DELTA, TOY)"))
    (tmp_path / "use.py").write_text(_USE)
    done = subprocess.run(
        [sys.executable, "use.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "type": "toy",
        "exclude": ["public.orders.note"],
        "address": "toy://elsewhere:7",
        "same": True,
        "rows": [{"id": 1}],
        "doctor": [["sink box", "let the address begin with toys"]],
        "certificates": ["ca.pem"],
        "able": [],
        "example": {"sinks": {"toys": {"type": "toy", "url": "toys://box"}}},
    }
