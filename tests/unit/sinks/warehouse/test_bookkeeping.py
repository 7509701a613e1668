"""sinks.warehouse.bookkeeping: its behaviour is in tests/contract"""

from pathlib import Path

from alembic.script import ScriptDirectory

import migrations.warehouse
from sinks.warehouse.bookkeeping_format import HEAD


def test_the_stored_format_is_the_number_of_the_newest_migration() -> None:
    scripts = ScriptDirectory(str(Path(migrations.warehouse.__file__).parent))
    assert scripts.get_current_head() == f"{HEAD:04}"
