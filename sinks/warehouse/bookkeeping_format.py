"""The stored format of the bookkeeping in a warehouse. Its migrations are elsewhere: executors don't have them."""

from typing import Final

SCHEMA: Final = "lockstep"
VERSION_TABLE: Final = "schema_version"

HEAD: Final = 5
"""The number of the newest migration."""
