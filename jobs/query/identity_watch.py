"""Whether a running job's sink still has the tables that the job prepared."""

import time
from typing import Final

from jobs.generations.identities import Identities
from jobs.generations.lease import GenerationLease

LOOK_S: Final = 30.0
"""How often a running job looks. A job that writes usually learns it from the destination; others are in no hurry."""


class IdentityWatch:
    """Watches the tables of one query. Called now and then by the thread beside it."""

    def __init__(self, lease: GenerationLease, identities: Identities) -> None:
        self._lease = lease
        self._identities = identities
        self._looked_s = time.monotonic()

    def has_lost(self) -> bool:
        """Whether a table was removed since the query began; the next query says which. Raises as the lease does."""
        now_s = time.monotonic()
        if not self._identities or now_s - self._looked_s < LOOK_S:
            return False
        self._looked_s = now_s
        return bool(self._lease.lost(self._identities))
