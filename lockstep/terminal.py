"""Rich's two consoles: ``out`` for results, ``err`` for displays. Only commands that draw tables import it.

Both print texts as they are: names and messages of others may have square brackets or ``:key:`` in them.
"""

from rich.console import Console

out = Console(markup=False, emoji=False)
err = Console(stderr=True, markup=False, emoji=False)
