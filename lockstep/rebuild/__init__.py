"""``lockstep rebuild``: another generation of a sink from the log, beside the live one or in its place."""
