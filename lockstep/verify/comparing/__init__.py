"""Which rows differ: the search for keys that may, and the recheck of those while rows go on changing."""
