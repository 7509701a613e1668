"""OpenSearch that lets signed requests in alone, as Amazon's does."""

import datetime
import json
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from opensearchpy import OpenSearch

from cdc.model.errors import LockstepError, StoreRefuses, Unavailable
from cdc.model.table import TableName
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings
from sinks.opensearch.sigv4 import SigV4
from sinks.opensearch.sink import OpenSearchSink
from stack.stack import Endpoints
from tests.aws_signatures import Account, fault_of
from tests.builders import batch, table, upsert
from tests.proxies import Answer, before

pytestmark = [pytest.mark.live, pytest.mark.soak]

ORDERS = table(name=TableName("public", "Ärger, 50% & mehr"))
"""Its index has a name that an address can't have as it is."""


def print_keys(file: Path, account: Account, *, for_s: float = 3600) -> None:
    ends = datetime.datetime.fromtimestamp(time.time() + for_s, datetime.UTC)
    text = {"Version": 1, "AccessKeyId": account.key_id, "SecretAccessKey": account.secret}
    file.write_text(json.dumps({**text, "SessionToken": account.token, "Expiration": ends.isoformat()}))


def test_signed_requests_are_let_in_and_keys_that_have_ended_are_asked_for_again(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    name, file = f"t{uuid.uuid4().hex[:12]}", tmp_path / "keys"
    let_in = [Account("FIRST", "first secret", "first+token/==")]
    refused = list[str]()
    answers = list[tuple[int, dict[str, object]]]()

    def change(request: BaseHTTPRequestHandler, sent: bytes, send_on: Callable[[bytes], Answer]) -> Answer:
        headers, now = dict(request.headers.items()), datetime.datetime.now(datetime.UTC)
        fault = fault_of(request.command, request.path, headers, sent, let_in[0], scope=("eu-central-1", "es"), now=now)
        if fault is None and not answers:
            return send_on(sent)
        if fault is None:
            status, answer = answers.pop()
            return status, "application/json", json.dumps(answer).encode()
        refused.append(fault)
        return 403, "application/json", json.dumps({"message": fault}).encode()

    print_keys(file, let_in[0])
    with before(endpoints.opensearch_url, change) as url:

        def opened(region: str = "eu-central-1") -> OpenSearchSink:
            sigv4 = SigV4(region=region, credentials_command=("cat", str(file)))
            settings = OpenSearchSettings(urls=(url,), replicas=0, timeout_s=30, sigv4=sigv4)
            return OpenSearchSink(OpenSearchIndexes(name, settings, 1))

        sink = opened()
        try:
            sink.prepare([ORDERS])
            assert sink.apply(batch(upsert({"id": 1, "note": "a"}, 1, of=ORDERS))).applied == 1
            assert [row.row["note"] for row in sink.scan(ORDERS) if row.row] == ["a"]
            assert refused == []
            let_in[0] = Account("SECOND", "second secret", "second token")
            print_keys(file, let_in[0])
            assert sink.apply(batch(upsert({"id": 1, "note": "b"}, 2, of=ORDERS))).applied == 1
            assert refused == ["the security token included in the request is expired"]
            let_in[0] = Account("THIRD", "third secret", "third token")
            with pytest.raises(Unavailable, match="credentials_command of this sink prints isn't taken") as caught:
                sink.apply(batch(upsert({"id": 1, "note": "c"}, 3, of=ORDERS)))
            assert "second secret" not in str(caught.value)
            print_keys(file, let_in[0])
            assert sink.apply(batch(upsert({"id": 1, "note": "c"}, 3, of=ORDERS))).applied == 1
            file.write_text("no keys: nobody asks for them")
            answers.append((403, {"error": {"type": "cluster_block_exception"}, "status": 403}))
            with pytest.raises(LockstepError, match="cluster_block_exception") as blocked:
                sink.apply(batch(upsert({"id": 1, "note": "d"}, 4, of=ORDERS)))
            assert "free space" in (blocked.value.hint or "")
            print_keys(file, let_in[0])
            answers += [(403, {"message": "Signature expired: 20261126T074514Z is now earlier than 1"})] * 2
            with pytest.raises(StoreRefuses, match="403"):
                sink.apply(batch(upsert({"id": 1, "note": "d"}, 4, of=ORDERS)))
            with pytest.raises(StoreRefuses, match="403") as stopped:
                opened("us-east-1").prepare([ORDERS])
            assert "check region, service and keys of sigv4" in (stopped.value.hint or "")
        finally:
            sink.close()
            with OpenSearch(endpoints.opensearch_url) as direct:
                direct.indices.delete(index=f"{name}.*")
