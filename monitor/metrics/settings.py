"""Where the metrics are served."""

from pydantic import Field, field_validator

from cdc.settings import Settings


class MetricsSettings(Settings):
    """Each process has an address of its own. Metrics hold names of tables and sinks, and no values of rows."""

    capture: str | None = Field(
        default=None, description="address on which Prometheus finds capture's metrics; none by default"
    )
    apply: str | None = Field(
        default=None, description="address on which Prometheus finds the jobs' metrics; none by default"
    )

    @field_validator("capture", "apply")
    @classmethod
    def _address(cls, address: str | None) -> str | None:
        if address is not None:
            split_address(address)
        return address


def split_address(address: str) -> tuple[str, int]:
    """Host and port. Raises ValueError for text that isn't an address."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"must be host:port, as 127.0.0.1:9464; not {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
