"""The ``lockstep`` command: its subcommands by what they are for."""
