"""Extensions, which the core works without. Each is a folder here and a line in ``ALL``; delete both to remove it.
Importing this package loads none of them: Spark's executors import what an extension runs there, and lack the packages
that its other parts need.
"""

from typing import Final

ALL: Final = (
    "extensions.alerts.extension:ALERTS",
    "extensions.demo.extension:DEMO",
    "extensions.erase.extension:ERASE",
    "extensions.searches.extension:SEARCHES",
    "extensions.streams.extension:STREAMS",
)
"""The paths of the ``lockstep.extension.Extension`` objects. No extension needs another one."""
