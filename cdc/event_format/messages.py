"""Logical messages as events. Pure.

A message has no newest state, so its topic retains every event. Its key has the prefix, and its value is

  {"op":"m","tag":"...","message":{"prefix":"...","content":"<base64>"},"source":{...},"ts_ms":...}
"""

import base64
from collections.abc import Collection
from dataclasses import dataclass

import orjson

from cdc.event_format.encode import CONNECTOR
from cdc.model.tag import tag_text
from cdc.protocol.pgoutput import LogicalMessage


@dataclass(frozen=True, slots=True)
class MessageChannel:
    """Which messages are published, and where."""

    prefixes: Collection[str]
    topic: str
    server: str
    database: str
    version: str

    def event(
        self, message: LogicalMessage, *, prefix: bytes, seq: int, commit_time_ms: int, xid: int | None
    ) -> tuple[str, bytes, bytes, None]:
        """The message as an event; ``prefix`` and ``seq`` make its tag, ``xid`` is None outside of transactions."""
        content = {"prefix": message.prefix, "content": base64.b64encode(message.content).decode()}
        source = {
            "version": self.version,
            "connector": CONNECTOR,
            "name": self.server,
            "db": self.database,
            "snapshot": "false",
            "ts_ms": commit_time_ms,
            "txId": xid,
            "lsn": message.lsn,
        }
        value = b'{"op":"m","tag":"%b","message":%b,"source":%b,"ts_ms":%d}' % (
            tag_text(prefix, seq),
            orjson.dumps(content),
            orjson.dumps(source),
            commit_time_ms,
        )
        return self.topic, orjson.dumps({"prefix": message.prefix}), value, None
