"""sinks.delta.tables"""

import pytest

from cdc.model.errors import ConfigurationError
from sinks.delta.settings import DeltaSettings
from sinks.delta.tables import DeltaTables


@pytest.mark.parametrize("prefix", ["a-b", "a/b", "a.b", "ü", ""])
def test_a_prefix_is_a_plain_name(prefix: str) -> None:
    with pytest.raises(ConfigurationError):
        DeltaTables(prefix or "-", DeltaSettings(root="/lake", prefix=prefix or None), 1)
