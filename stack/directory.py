"""The default directory of ``up``'s servers. A separate module, so that a command's help needs no server."""

from pathlib import Path
from typing import Final

DEFAULT_DIRECTORY: Final = Path(".lockstep/stack")
STATE_FILE: Final = "stack.json"
"""Every directory in which servers were ever started has it."""
