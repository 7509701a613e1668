"""The stored format of a warehouse's bookkeeping. Its migrations are elsewhere, since executors don't have them."""

from typing import Final

SCHEMA: Final = "lockstep"
VERSION_TABLE: Final = "schema_version"

HEAD: Final = 5
"""The number of the newest migration."""
