"""The demo's ``lockstep.toml``: an ordinary file, which the other commands accept as well. Pure."""

import json

from extensions.demo.shop import TABLES
from extensions.demo.timeline import SECTION
from stack.stack import Endpoints

PIPELINE = "shop"
SEARCH, CACHE, WAREHOUSE = "search", "cache", "warehouse"

FIRST_WORDS = "# Written by `lockstep demo`"
"""The beginning of every file of a demo."""

_TEMPLATE = (
    f"{FIRST_WORDS} at each run."
    + """ Every command takes it: lockstep lag --config <this file>

[pipeline]
name = "{pipeline}"                # first part of every topic

[source]
dsn = {source_dsn}
tables = [{tables}]
heartbeat_interval_s = 2.0

[kafka]
bootstrap_servers = "{kafka_bootstrap}"

[kafka.topics]
replication_factor = 1        # there is one broker here

[spark]
master = "local[2]"
trigger_ms = 500              # two batches a second: five servers share this machine, and a rebuild comes on top
checkpoint_directory = "checkpoints"
view_directory = "views"

[dashboard]
listen = "{listen}"

[sinks.{search}]                # indexes {pipeline}.public.<table>
type = "opensearch"
urls = ["{opensearch_url}"]
prefix = "{pipeline}"
replicas = 0                  # there is one node here
{mapping}
[sinks.{cache}]                 # keys {pipeline}:g1:public.<table>:<key>
type = "redis"
url = "{redis_url}"
prefix = "{pipeline}"

[sinks.{warehouse}]             # views {pipeline}.<table>
type = "warehouse"
url = "{warehouse_url}"
schema = "{pipeline}"

{view}"""
)


_MAPPING = """\
exclude = ["public.customers.email"]                                # not for the search index, it was found
fields = { "public.products.title" = { type = "search_as_you_type" } }
"""


def configuration(endpoints: Endpoints, *, listen: str, mapping_has_changed: bool = False) -> str:
    """The file, before or after the change of the search index's mapping. ``listen`` is the web page's address."""
    return _TEMPLATE.format(
        pipeline=PIPELINE,
        listen=listen,
        mapping=_MAPPING if mapping_has_changed else "",
        view=SECTION,
        source_dsn=_toml_string(endpoints.source_dsn),
        tables=", ".join(f'"{table}"' for table in TABLES),
        kafka_bootstrap=endpoints.kafka_bootstrap,
        opensearch_url=endpoints.opensearch_url,
        redis_url=endpoints.redis_url,
        warehouse_url=endpoints.warehouse_url,
        search=SEARCH,
        cache=CACHE,
        warehouse=WAREHOUSE,
    )


def _toml_string(text: str) -> str:
    """JSON's strings are TOML's except for one control character, which is in no path of a stack."""
    return json.dumps(text, ensure_ascii=False)
