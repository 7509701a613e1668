"""Time limits of every wait of half a minute or more, in seconds, with the reason. A limit counts from the last
progress. It counts from the start ("in all") where progress can't be seen. ``cdc.machine_load.patient`` raises the
limits that a busy machine may reach."""

from typing import Final

KAFKA_SILENT_S: Final = 90.0
"""A reader gets nothing of what it lacks. Readers wait for transactions that a killed writer left open; brokers look
for those every ten seconds and abort them after a minute."""

KAFKA_TAKES_NOTHING_S: Final = 120.0
"""A writer's queue gets no shorter: the writer reconnects. Brokers elect a leader in less."""

KAFKA_CONFIRMS_S: Final = 30.0
"""In all, for a record that a command writes: somebody waits for the command."""

KAFKA_SHOWS_S: Final = 30.0
"""In all, until brokers show topic settings that they have accepted. That takes less than a second."""

OFFSETS_S: Final = 180.0
"""In all, for Spark to ask Kafka for offsets, one client after the other. Then the query restarts."""

SLOT_LET_GO_S: Final = 30.0
"""In all, until a reader that was ended releases the slot. Its server process notices within a second."""

SLOT_COMES_S: Final = 60.0
"""In all, to create a slot in the middle of the stream, which stops for that."""

OBEYED_S: Final = 60.0
"""In all, for a running process to obey a command: it ends its batch first. It also obeys later."""

PAUSE_MAX_S: Final = 90.0
"""In all, for a job that was asked to pause: the requester may have died, and readers see older rows meanwhile."""

CATCHES_UP_S: Final = 45.0
"""A generation that is to go live applies nothing. An ordinary batch takes a second."""

BUILD_SILENT_S: Final = 30.0
"""A rebuild or its driver gives no sign of life, which it does every second: it is dead."""

SEARCHES_SILENT_S: Final = 60.0
"""The process of standing searches gives no sign of life, which it does every ten seconds."""

SEARCHES_SILENT_MAX_S: Final = 3600.0
"""The same after two processes displaced each other repeatedly: it doubles each time, up to this."""

BATCH_ENDS_S: Final = 30.0
"""In all, for the running batch of a job that stops. An interrupted batch is read again."""

STOPS_S: Final = 30.0
"""In all, for processes that were asked to stop; then they are killed. A batch ends within it."""

JVM_WORKS_S: Final = 120.0
"""In all, for an empty batch, or a JVM's end, while the class archive is made. The archive is optional."""

REDIS_ANSWERS_S: Final = 30.0
"""To connect to a Redis server, or to get its answer; ``?socket_timeout=`` in its address overrides it."""

TOPIC_READ_S: Final = 60.0
"""In all, to look for one key in a topic, which has no index. Then the answer goes without it."""

STEP_READ_S: Final = 60.0
"""In all, for a page to read the rows of one step of a view, from a file that grows meanwhile."""

DEMO_STILL_S: Final = 600.0
"""The demo copies, applies or rebuilds nothing. One batch is one step, and on a slow machine a backlog is one batch."""

DEMO_ANSWERS_S: Final = 30.0
"""In all, for one answer of a local server, the demo's included, to a small question."""
