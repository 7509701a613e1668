"""sinks.delta.tables"""

from pathlib import Path

import pytest

from cdc.model.errors import ConfigurationError, LockstepError
from sinks.delta.settings import DeltaSettings
from sinks.delta.tables import DeltaTables


@pytest.mark.parametrize("prefix", ["a-b", "a/b", "a.b", "ü", ""])
def test_a_prefix_is_a_plain_name(prefix: str) -> None:
    with pytest.raises(ConfigurationError):
        DeltaTables(prefix or "-", DeltaSettings(root="/lake", prefix=prefix or None), 1)


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/etc", "shop_g1", "shop_g1/", "shop_g1/.", "shop_g1/..", "shop_g1/../other", "shop_g1//etc"),
        *("shop_g2/orders", "shop_live", "../shop_g1/orders", "shop_g1/a/b", "shop_g1/a-1/..", "shop_g1/a\n"),
        *("/lake/shop_g1/orders", "s3://b/shop_g1/orders", "shop_g1/%2e%2e"),
    ],
)
def test_no_other_path_is_written_or_deleted_whoever_names_it(tmp_path: Path, path: str) -> None:
    (tmp_path / "shop_g1" / "orders").mkdir(parents=True)
    tables = DeltaTables("shop", DeltaSettings(root=str(tmp_path)), 1)
    for use in (tables.own, tables.remove):
        with pytest.raises(LockstepError, match="bookkeeping table"):
            use(path)
    assert (tmp_path / "shop_g1" / "orders").is_dir()


def test_a_link_that_leads_out_of_the_root_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious" / "orders").mkdir(parents=True)
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "shop_g1").symlink_to(tmp_path / "precious")
    tables = DeltaTables("shop", DeltaSettings(root=str(tmp_path / "lake")), 1)
    with pytest.raises(LockstepError, match="a link leads out"):
        tables.remove("shop_g1/orders")
    assert (tmp_path / "precious" / "orders").is_dir()


def test_a_root_that_is_a_link_itself_is_fine(tmp_path: Path) -> None:
    (tmp_path / "disk" / "shop_g1" / "orders").mkdir(parents=True)
    (tmp_path / "lake").symlink_to(tmp_path / "disk")
    DeltaTables("shop", DeltaSettings(root=str(tmp_path / "lake")), 1).remove("shop_g1/orders")
    assert not (tmp_path / "disk" / "shop_g1" / "orders").exists()
