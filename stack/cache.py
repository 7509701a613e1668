"""The directory of fetched files: one per user, shared by every checkout, safe to delete at any time."""

import os
import platform
from pathlib import Path

from stack.errors import StackError

_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}
MACHINES = tuple(dict.fromkeys(_MACHINES.values()))


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/lockstep`, or `~/.cache/lockstep`."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The specification tells programs to ignore a relative path.
    base = Path(configured) if configured.startswith("/") else Path.home() / ".cache"
    return base / "lockstep"


def machine() -> str:
    """This processor's name in the PostgreSQL packages. Raises StackError when they have no build for it."""
    if platform.system() != "Linux" or platform.machine() not in _MACHINES:
        raise StackError(
            f"no packaged servers for {platform.system()} on {platform.machine()}",
            hint="use docker-compose.yml, or point the configuration at servers that exist already",
        )
    return _MACHINES[platform.machine()]
