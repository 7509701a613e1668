"""``lockstep capture``: joins stream, snapshot and publisher to one process."""
