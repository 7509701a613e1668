"""sinks.warehouse.postgres.connection"""

import pytest
from pydantic import SecretStr

from cdc.model.errors import ConfigurationError
from sinks.warehouse.postgres.connection import WarehouseConnection
from sinks.warehouse.settings import WarehouseSettings


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "postgresql+psycopg://h:secret-word/w",
        "postgresql+asyncpg://h/w",
        "postgresql+nosuch://h/w",
        "mysql://h/w",
    ],
)
def test_an_address_that_is_no_warehouses_is_a_configuration_error(url: str) -> None:
    settings = WarehouseSettings(url=SecretStr(url))
    connection = WarehouseConnection(settings, views="dwh", generation=1, forget=lambda: None)
    with pytest.raises(ConfigurationError, match=r"postgresql\+psycopg://") as raised, connection.transaction():
        pass
    assert "secret-word" not in str(raised.value)
