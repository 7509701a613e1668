"""sinks.opensearch.indexes: what it refuses before it connects; its behaviour is in tests/contract"""

import pytest

from cdc.model.errors import ConfigurationError
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings


def test_a_prefix_must_be_legal() -> None:
    with pytest.raises(ConfigurationError, match="can't begin an index name"):
        OpenSearchIndexes("Shop", OpenSearchSettings(), 1)
