"""The server version from which on something exists, as ``server_version_num``."""

from typing import Final

OLDEST_SUPPORTED: Final = 140000
"""Messages in the logical stream, which advance idle slots, came with 14."""

PUBLICATION_LISTS: Final = 150000
"""Row filters, column lists and whole schemas in publications."""

ORIGINS: Final = 160000
"""pgoutput can leave out what was itself replicated into the server."""

INVALIDATION_REASONS: Final = 170000
"""``pg_replication_slots`` says why a slot was invalidated."""

FAILOVER_SLOTS: Final = 170000
"""A standby can keep a copy of a slot, from which a stream continues after a promotion."""

GENERATED_COLUMNS: Final = 180000
"""Publications can send stored generated columns. From here on PostgreSQL refuses an UPDATE whose replica identity
holds a generated column that isn't published; before, it sent the other columns."""
