"""What Lockstep creates in other people's databases: ``source`` (role, publication) and ``warehouse`` (bookkeeping)."""
