"""Which code encodes ordinary rows in this process, by its environment."""

import os

from cdc.protocol.compiled_code import VARIABLE, KernelChoice
from cdc.protocol.row_kernel import RowEncoding, row_encoding


def chosen_row_encoding() -> RowEncoding:
    """The encoding that the environment requests, or the best available one. Raises as ``row_encoding``."""
    return row_encoding(os.environ.get(VARIABLE) or KernelChoice.AUTO)
