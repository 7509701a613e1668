"""The ``lockstep`` command: a module for each group of commands, and ``main`` that joins them."""
