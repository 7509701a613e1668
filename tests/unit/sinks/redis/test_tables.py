"""sinks.redis.tables: its behaviour is in tests/contract"""

import pytest

from cdc.model.errors import ConfigurationError
from sinks.redis.settings import RedisSettings
from sinks.redis.tables import RedisTables


def test_a_prefix_must_not_hold_a_separator() -> None:
    with pytest.raises(ConfigurationError, match="can't begin a key"):
        RedisTables("a:b", RedisSettings(), 1)
