"""The section ``[searches]``."""

from cdc.settings import Settings


class SearchesSettings(Settings):
    """``sinks`` are those whose searches ``lockstep run`` tells of."""

    sinks: tuple[str, ...] = ()
