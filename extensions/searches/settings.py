"""The section ``[searches]``."""

from cdc.settings import Settings


class SearchesSettings(Settings):
    """``sinks`` are those whose searches ``lockstep run`` reports."""

    sinks: tuple[str, ...] = ()
