"""Parts that users of the core may do without. Each is a folder here and two lines below; without them, it is gone."""

from typing import Final

from extensions.alerts.extension import ALERTS
from extensions.demo.extension import DEMO
from extensions.erase.extension import ERASE
from extensions.searches.extension import SEARCHES
from lockstep.extension import Extension

ALL: Final[tuple[Extension, ...]] = (
    ALERTS,
    DEMO,
    ERASE,
    SEARCHES,
)
