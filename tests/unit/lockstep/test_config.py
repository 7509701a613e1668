"""``lockstep.toml``: every error at once, with its path; secrets only from the environment or files."""

from pathlib import Path

import pytest

from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName
from lockstep.config import load

VALID = """
[pipeline]
name = "shop"
[source]
dsn = "host=db dbname=shop user=lockstep"
tables = ["public.orders", "public.items"]
[kafka]
bootstrap_servers = "kafka:9092"
[sinks.cache]
type = "redis"
tables = ["public.orders"]
"""


@pytest.fixture
def write(tmp_path: Path):
    def _write(text: str) -> Path:
        path = tmp_path / "lockstep.toml"
        path.write_text(text)
        return path

    return _write


def test_names_are_derived_from_the_pipeline(write) -> None:
    config = load(write(VALID))
    assert (config.slot, config.publication) == ("lockstep_shop", "lockstep_shop")
    assert config.topics()[TableName("public", "orders")] == "shop.public.orders"


def test_relative_checkpoints_count_from_the_file(write, tmp_path: Path) -> None:
    config = load(write(VALID + '[spark]\ncheckpoint_directory = "somewhere"\n'))
    assert config.spark.checkpoint_directory == str(tmp_path / "somewhere")


def test_checkpoints_on_another_file_system_keep_their_address(write) -> None:
    config = load(write(VALID + '[spark]\ncheckpoint_directory = "s3a://bucket/x"\n'))
    assert config.spark.checkpoint_directory == "s3a://bucket/x"


def test_all_problems_are_reported_at_once_with_their_paths(write) -> None:
    text = VALID.replace('name = "shop"', 'name = "Shop!"').replace("bootstrap_servers", "bootstrap_server")
    with pytest.raises(ConfigurationError) as caught:
        load(write(text + "colour = 1\n"))
    paths = {problem.split(":")[0] for problem in caught.value.problems}
    assert paths == {"pipeline.name", "kafka.bootstrap_servers", "kafka.bootstrap_server", "sinks.cache.colour"}


def test_an_unknown_setting_is_an_error(write) -> None:
    with pytest.raises(ConfigurationError, match=r"capture\.batch_row: unknown setting"):
        load(write(VALID + "[capture]\nbatch_row = 1\n"))


def test_a_sink_cannot_ask_for_a_table_that_is_not_captured(write) -> None:
    with pytest.raises(ConfigurationError, match=r"public\.customers"):
        load(write(VALID.replace('tables = ["public.orders"]', 'tables = ["public.customers"]')))


def test_a_warehouse_in_a_file_is_written_by_one_machine(write) -> None:
    text = (
        VALID + '[sinks.dwh]\ntype = "warehouse"\nurl = "duckdb:////var/lib/shop/dwh.duckdb"\n[spark]\nmaster = "{}"\n'
    )
    assert load(write(text.format("local[2]"))).sinks["dwh"].type == "warehouse"
    with pytest.raises(ConfigurationError, match=r"sinks\.dwh\.url names a file"):
        load(write(text.format("spark://master:7077")))


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("user=lockstep", "user=lockstep password=geheim", "source.dsn"),
        ('type = "redis"', 'type = "redis"\nlogin = { password = "geheim" }', "sinks.cache.login.password"),
        ('type = "redis"', 'type = "redis"\nurl = "redis://:geheim@cache:6379/0"', "sinks.cache.url"),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_shown(write, old: str, new: str, path: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(write(VALID.replace(old, new)))
    assert path in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_a_sink_gets_its_password_from_the_environment(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_SINK_CACHE_PASSWORD", "geheim")
    config = load(write(VALID))
    assert config.sinks["cache"].login.read_password() == "geheim"
    assert "geheim" not in repr(config)


def test_the_source_password_is_read_from_its_file(write, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("geheim\n")
    config = load(write(VALID.replace("[kafka]", f'password_file = "{tmp_path / "secret"}"\n[kafka]')))
    password = config.source.password()
    assert password is not None
    assert password.get_secret_value() == "geheim"
    assert "geheim" not in repr(config)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="lockstep init"):
        load(tmp_path / "nowhere.toml")


def test_broken_toml_is_a_configuration_error(write) -> None:
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        load(write("[pipeline"))
