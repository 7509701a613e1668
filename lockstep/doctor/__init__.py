"""``lockstep doctor``: finds everything that can be known to fail before it does. Reads only."""
