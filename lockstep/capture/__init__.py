"""``lockstep capture``: joins stream, snapshot and publisher into one process."""
