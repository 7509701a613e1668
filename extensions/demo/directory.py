"""The demo's directory. Each run overwrites a file, deletes checkpoints and empties servers in it."""

from pathlib import Path
from typing import Final

from cdc.model.errors import ConfigurationError
from extensions.demo.settings import FIRST_WORDS
from stack.directory import DEFAULT_DIRECTORY, STATE_FILE

CONFIGURATION: Final = "lockstep.toml"
LOCK: Final = "demo.lock"
"""Created before anything else: it marks a directory of a demo, even of one that wrote no configuration."""


def check_directory(directory: Path) -> None:
    """Raises ConfigurationError unless the directory is absent, empty, or made by a demo. Changes nothing."""
    if (directory / "stack").resolve() == DEFAULT_DIRECTORY.resolve() or (directory / STATE_FILE).exists():
        raise _refused(f"the servers of {directory} are those of `lockstep up`, and a demo would empty them")
    if not directory.exists() or not any(directory.iterdir()):
        return
    head = _head(directory / CONFIGURATION)
    # A killed demo may have left no configuration, or an empty one.
    if not (head == FIRST_WORDS or (not head and (directory / LOCK).exists())):
        raise _refused(f"{directory} holds files that no demo made, and a demo would overwrite or delete them")


def _head(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return content.read(len(FIRST_WORDS.encode())).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _refused(why: str) -> ConfigurationError:
    return ConfigurationError(why, hint="name an empty or new directory with --directory")


def shown(path: Path) -> Path:
    """A path for people, who run commands where they ran the demo: relative if it is below the current directory."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
