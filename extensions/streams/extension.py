"""The extension ``streams``."""

from typing import Final

from cdc.model.later import later
from extensions.streams import cli
from lockstep.extension import Extension, Group

_EXAMPLE: Final = """\
# Results in event time of Kafka topics with JSON, kept by Spark: docs/stream-queries.md.
# [streams.clicks]
# topic = "web.clicks"
# columns = { id = "text", page = "text", at = "timestamptz", sent_at = "timestamptz" }
# time = "at"                              # the column with the event's time
# late = "10 minutes"                      # how far behind the newest event one may be
# id = ["id"]                              # what an event and its repetition have in common
# sent = "sent_at"                         # the time of sending by the device's clock, which corrects the event's time
# rows_of = { "public.orders" = ["page"] }  # columns with the key of a table's row, for `lockstep erase`

# [stream_queries.clicks_per_hour]
# sink = "warehouse"                       # the section whose store, address and login it takes
# key = ["page", "hour"]                   # columns that tell the result's rows apart
# sql = "select page, window(at, '1 hour').start as hour, count(*) as n from clicks group by page, window(at, '1 hour')"
# topic = true                             # the rows are on a topic as well (streams rebuild)
# rows_of = { "public.orders" = ["page"] }  # columns of the key with the key of a table's row, for `lockstep erase`
# Each row is posted to an HTTP endpoint too. A secret address is in $LOCKSTEP_STREAM_QUERY_<NAME>_WEBHOOK_URL.
# webhook = { url = "https://hooks.example.com/rows", headers = { Authorization = "ROWS_TOKEN" } }    # and url_file

# A pattern instead of SQL: events that follow each other within a time. It has no key of its own to name.
# [stream_queries.given_up]
# sink = "warehouse"
# [stream_queries.given_up.pattern]
# per = ["page"]                           # columns that the events have in common
# within = "30 minutes"                    # how much later than the first event the last one may be
# select = { first_id = "tried[0].id" }    # further columns, over the steps' names
# [[stream_queries.given_up.pattern.steps]]
# name = "tried"
# stream = "clicks"
# where = "id like 'try-%'"                # a condition on the stream's columns
# times = 3                                # so many of them
# [[stream_queries.given_up.pattern.steps]]
# name = "done"
# stream = "clicks"
# where = "id like 'done-%'"
# without = true                           # none of these may be there; after the last event: until the time is over
"""

STREAMS: Final = Extension(
    name="streams",
    groups=[
        Group(
            "streams",
            "Queries over Kafka topics with JSON, in event time.",
            {"list": cli.list_all, "rebuild": cli.rebuild},
        )
    ],
    sections={
        "streams": "extensions.streams.sections:Streams",
        "stream_queries": "extensions.streams.sections:StreamQueries",
    },
    expanded=later("extensions.streams.sections:with_stream_queries"),
    problems=later("extensions.streams.configured:problems"),
    stores=later("extensions.streams.store:stores"),
    example=_EXAMPLE,
    doctor=later("extensions.streams.doctor:check_streams"),
    conditions=("stream-query-stopped", "stream-query-undelivered", "stream-query-unreachable"),
    metrics=later("extensions.streams.watch:metrics"),
    watch=later("extensions.streams.watch:StreamQueriesWatch"),
    watch_every_s=2.0,
    panel=later("extensions.streams.watch:panel_now"),
    eraser=later("extensions.streams.erasing:StreamQueryErasing"),
)
"""The queries' jobs run in the driver of ``lockstep apply``, in the same Spark session as those of sinks."""
