"""What Debezium's connector needs to know of a stack."""

from pathlib import Path

import pytest

from bench.debezium import password_of
from cdc.model.errors import LockstepError


def test_the_password_is_the_last_field_of_the_line(tmp_path: Path) -> None:
    passfile = tmp_path / "pgpass"
    passfile.write_text("127.0.0.1:*:*:*:s3cr3t\n")
    assert password_of(passfile) == "s3cr3t"


def test_another_file_is_refused_without_what_it_holds(tmp_path: Path) -> None:
    passfile = tmp_path / "pgpass"
    passfile.write_text("s3cr3t\n")
    with pytest.raises(LockstepError) as refused:
        password_of(passfile)
    assert "s3cr3t" not in str(refused.value)
