"""sinks.warehouse.tables: which databases it takes; its behaviour is in tests/contract"""

import pytest
from pydantic import SecretStr

from cdc.model.errors import ConfigurationError, LockstepError
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.tables import WarehouseTables


@pytest.mark.parametrize("url", ["mysql://host/db", "not an address"])
def test_another_database_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        WarehouseSink(WarehouseTables("shop", WarehouseSettings(url=SecretStr(url)), 1)).claim()


def test_a_schema_that_postgresql_would_cut_is_refused() -> None:
    with pytest.raises(LockstepError, match="longer than 63 bytes"):
        WarehouseTables("s" * 62, WarehouseSettings(url=SecretStr("postgresql://h/d")), 1)
