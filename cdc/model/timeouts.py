"""How long is waited at most, and why: each wait of half a minute or more, in seconds.

A wait lasts as long as something gets on, and ends after so long without that. Where that can't be seen, its line says
"in all". ``cdc.machine_load.patient`` makes more of those that a busy machine may reach.
"""

from typing import Final

KAFKA_SILENT_S: Final = 90.0
"""A reader gets nothing of what it lacks. Readers wait for what a killed writer left open, which brokers abort after a
minute, and look for every ten seconds."""

KAFKA_TAKES_NOTHING_S: Final = 120.0
"""A writer's queue gets no shorter: it begins again with a new connection. Brokers elect a leader in less."""

KAFKA_CONFIRMS_S: Final = 30.0
"""In all, for a record that a command writes: somebody waits for the command."""

KAFKA_SHOWS_S: Final = 30.0
"""In all, until brokers show a topic's settings that they have taken. They do so within a second."""

OFFSETS_S: Final = 180.0
"""In all, for Spark to ask Kafka for offsets, one client after the other: then the query is begun again."""

SLOT_LET_GO_S: Final = 30.0
"""In all, for a reader that was ended to let go of the slot. Its server process notices within a second."""

SLOT_COMES_S: Final = 60.0
"""In all, for a slot to be made in the middle of the stream, which stops for that."""

OBEYED_S: Final = 60.0
"""In all, for a running process to obey a command: the batch under way ends first. It obeys later too."""

PAUSE_MAX_S: Final = 90.0
"""In all, for a job that was asked to pause: whoever asked may have died, and readers see older rows meanwhile."""

CATCHES_UP_S: Final = 45.0
"""A generation that is to go live applies nothing. A batch of ordinary size takes a second."""

BUILD_SILENT_S: Final = 30.0
"""A rebuild or its driver shows no sign of life, of which it gives one a second: it is gone."""

SEARCHES_SILENT_S: Final = 60.0
"""Whoever follows standing searches shows no sign of life, of which it gives one every ten seconds."""

SEARCHES_SILENT_MAX_S: Final = 3600.0
"""The same where two took the place from each other again and again: it is doubled each time, up to this."""

BATCH_ENDS_S: Final = 30.0
"""In all, for the running batch of a job that stops. An interrupted one is read again."""

STOPS_S: Final = 30.0
"""In all, for processes that were told to stop, before they are killed. A batch ends within it."""

JVM_WORKS_S: Final = 120.0
"""In all, for a batch of no row, or for a JVM to end, while the class archive is made. Nothing is wrong without it."""

REDIS_ANSWERS_S: Final = 30.0
"""A Redis server is reached, or answers; an address with ``?socket_timeout=`` says otherwise."""

TOPIC_READ_S: Final = 60.0
"""In all, to look for one key in a topic, which has no index. The answer then lacks what that would have told."""

STEP_READ_S: Final = 60.0
"""In all, for a page to take the rows of one step of a view: the file that has them grows meanwhile."""

DEMO_STILL_S: Final = 600.0
"""The demo copies, applies or rebuilds nothing. One batch is one step, and a backlog on a slow machine is one batch."""

DEMO_ANSWERS_S: Final = 30.0
"""In all, for one answer of a server of the demo, or of this machine's, to a small question."""
