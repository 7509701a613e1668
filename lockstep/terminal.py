"""Rich's two consoles: ``out`` for results, ``err`` for displays. Only commands that draw tables import it."""

from rich.console import Console

out = Console()
err = Console(stderr=True)
