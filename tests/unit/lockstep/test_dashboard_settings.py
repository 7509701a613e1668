"""lockstep.dashboard_settings"""

import pytest
from pydantic import ValidationError

from lockstep.dashboard_settings import DashboardSettings


@pytest.mark.parametrize(
    ("listen", "host", "port", "is_loopback"),
    [
        ("127.0.0.1:8642", "127.0.0.1", 8642, True),
        ("localhost:0", "localhost", 0, True),
        ("[::1]:8642", "::1", 8642, True),
        ("127.8.8.8:1", "127.8.8.8", 1, True),
        ("0.0.0.0:8642", "0.0.0.0", 8642, False),
        ("[::]:8642", "::", 8642, False),
        ("localhost.example.com:8642", "localhost.example.com", 8642, False),
    ],
)
def test_an_address_says_whether_others_reach_it(listen: str, host: str, port: int, is_loopback: bool) -> None:
    settings = DashboardSettings(listen=listen)
    assert (settings.host, settings.port, settings.is_loopback) == (host, port, is_loopback)


@pytest.mark.parametrize("listen", ["", "8642", ":8642", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", "[]:1"])
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(ValidationError):
        DashboardSettings(listen=listen)
