"""Parts that users of the core may do without. Each is a folder here and a line below; without them, it is gone.

Importing it loads none: Spark's executors import what an extension runs there, and have not all that the others need.
"""

from typing import Final

ALL: Final = (
    "extensions.alerts.extension:ALERTS",
    "extensions.demo.extension:DEMO",
    "extensions.erase.extension:ERASE",
    "extensions.searches.extension:SEARCHES",
    "extensions.streams.extension:STREAMS",
)
"""Where each one's ``lockstep.extension.Extension`` is. The core works without any folder of ``extensions/``, and each
extension without the others."""
