"""Which code encodes ordinary rows in this process, by its environment."""

import os

from cdc.event_format.compiled import RowEncoding, row_encoding
from cdc.protocol.compiled_code import VARIABLE, KernelChoice


def chosen_row_encoding() -> RowEncoding:
    """The encoding that the environment requests, or the best available one. Raises as ``row_encoding``."""
    return row_encoding(os.environ.get(VARIABLE) or KernelChoice.AUTO)
