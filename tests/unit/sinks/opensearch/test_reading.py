"""sinks.opensearch.reading"""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from sinks.opensearch.client import OpenSearchClient
from sinks.opensearch.reading import found
from sinks.opensearch.settings import OpenSearchSettings

PAGE = b'{"_scroll_id": "s", "timed_out": false, "_shards": {"failed": 0}, "hits": {"hits": [{"_id": "1"}]}}'


class _OnePage(BaseHTTPRequestHandler):
    """Answers one request, and takes no further ones."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        pass


def test_a_search_that_nobody_reads_on_ends_quietly_when_its_server_is_gone() -> None:
    with HTTPServer(("127.0.0.1", 0), _OnePage) as server:
        serving = threading.Thread(target=server.handle_request)
        serving.start()
        client = OpenSearchClient(OpenSearchSettings(urls=(f"http://127.0.0.1:{server.server_port}",)))
        groups = found(client, "i", {"match_all": {}})
        assert next(groups) == [{"_id": "1"}]
        serving.join()
    groups.close()  # type: ignore[attr-defined]
    client.close()
