"""``lockstep.toml``: every error at once, with its path; secrets only from the environment or files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.table import TableName
from cdc.postgres.dsn import parse_dsn
from cdc.settings import Tls
from lockstep.config import load, read
from sinks.redis.settings import RedisSettings
from sinks.warehouse.settings import WarehouseSettings

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


def test_the_section_of_an_extension_that_is_not_there_says_what_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "lockstep.toml").write_text(VALID + "[searches]\n")
    code = (
        "import sys\nfrom pathlib import Path\nsys.modules['extensions'] = None\n"
        "from lockstep.config import validated, parse\nprint(*validated(parse(Path('lockstep.toml')))[1], sep='\\n')"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "searches: unknown section: check its spelling, or install the extension that it belongs to",
    ]


def test_pipelines_whose_files_lie_side_by_side_have_alerts_of_their_own(write, tmp_path: Path) -> None:
    shop = load(write(VALID))
    crm = load(write(VALID.replace('name = "shop"', 'name = "crm"')))
    assert shop.watch_directory == tmp_path / ".lockstep" / "alerts" / "shop"
    assert crm.watch_directory == tmp_path / ".lockstep" / "alerts" / "crm"


def test_every_path_counts_from_the_file(write, tmp_path: Path) -> None:
    kafka = '[kafka]\nsasl_mechanism = "PLAIN"\npassword_file = "kafka"\ntls = { ca_file = "ca" }'
    text = VALID.replace("[kafka]", f'password_file = "source"\n{kafka}')
    cache = (
        'url = "rediss://cache"\nlogin = { password_file = "cache" }\ntls = { ca_file = "ca", key_file = "/etc/key" }\n'
    )
    spark = '[spark]\npackage = "package.zip"\n'
    config = load(write(text + cache + spark))
    assert config.source.password_file == tmp_path / "source"
    assert (config.kafka.password_file, config.kafka.tls) == (tmp_path / "kafka", Tls(ca_file=tmp_path / "ca"))
    sink = config.sinks["cache"]
    assert isinstance(sink, RedisSettings)
    assert sink.login.password_file == tmp_path / "cache"
    assert (sink.tls.ca_file, sink.tls.key_file) == (tmp_path / "ca", Path("/etc/key"))
    assert config.spark.package == tmp_path / "package.zip"


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("host=db sslrootcert=ca.pem sslkey=/k.pem", {"sslrootcert": "{below}/ca.pem", "sslkey": "/k.pem"}),
        ("host=db sslcert=c sslkey=k sslcrl=r sslcrldir=d passfile=p",
         {"sslcert": "{below}/c", "sslkey": "{below}/k", "sslcrl": "{below}/r", "sslcrldir": "{below}/d",
          "passfile": "{below}/p"}),
        ("host=db sslrootcert=system sslkey=pkcs11:k sslcert=''",
         {"sslrootcert": "system", "sslkey": "pkcs11:k", "sslcert": ""}),
        ("postgresql://me@a:1,b:2/shop?sslrootcert=ca%20x.pem",
         {"host": "a,b", "port": "1,2", "user": "me", "dbname": "shop", "sslrootcert": "{below}/ca x.pem"}),
    ],
)  # fmt: skip
def test_files_of_the_connection_string_count_from_the_file(
    write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dsn: str, expected: dict[str, str]
) -> None:
    path = write(VALID.replace("host=db dbname=shop user=lockstep", dsn))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for named in (path, Path("..") / path.name):
        parts = parse_dsn(load(named).source.dsn)
        below = str(named.absolute().parent)
        assert {name: parts[name] for name in expected} == {
            name: value.format(below=below) for name, value in expected.items()
        }


@pytest.mark.parametrize(
    ("kind", "address", "parameters", "below"),
    [
        (
            "warehouse",
            "postgresql+psycopg://u%40x@h/d",
            "sslmode=verify-full&sslrootcert=a%20b.pem&sslkey=/k",
            "sslmode=verify-full&sslrootcert={}/a%20b.pem&sslkey=/k",
        ),
        ("warehouse", "postgresql+psycopg://h/d", "sslrootcert=system", "sslrootcert=system"),
        ("warehouse", "duckdb:////a/b.duckdb", "memory_limit=4GB", "memory_limit=4GB"),
        ("redis", "rediss://h/0", "ssl_ca_certs=ca.pem", "ssl_ca_certs={}/ca.pem"),
    ],
)
def test_files_of_an_address_count_from_the_file(
    write, tmp_path: Path, kind: str, address: str, parameters: str, below: str
) -> None:
    sink = load(write(VALID.replace('type = "redis"', f'type = "{kind}"\nurl = "{address}?{parameters}"'))).sinks[
        "cache"
    ]
    assert isinstance(sink, RedisSettings | WarehouseSettings)
    assert sink.url.get_secret_value() == f"{address}?{below.format(tmp_path)}"


def test_checkpoints_on_another_file_system_keep_their_address(write) -> None:
    config = load(write(VALID + '[spark]\ncheckpoint_directory = "s3a://bucket/x"\n'))
    assert config.spark.checkpoint_directory == "s3a://bucket/x"


def test_all_problems_are_reported_at_once_with_their_paths(write) -> None:
    text = VALID.replace('name = "shop"', 'name = "Shop!"').replace("bootstrap_servers", "bootstrap_server")
    with pytest.raises(ConfigurationError) as caught:
        load(write(text + "colour = 1\n"))
    paths = {problem.split(":")[0] for problem in caught.value.problems}
    assert paths == {"pipeline.name", "kafka.bootstrap_servers", "kafka.bootstrap_server", "sinks.cache.colour"}


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ('type = "opensearch"\nurls = ["http://a:1", "http://b:1"]', "prefix"),
        ('type = "redis"\nurl = "redis://a:1/0"', "prefix"),
        ('type = "warehouse"\nurl = "postgresql+psycopg://a/w"', "schema"),
        ('type = "warehouse"\nurl = "duckdb:////a/w.duckdb"', "schema"),
        ('type = "delta"\nroot = "/a"', "prefix"),
    ],
)
def test_two_sinks_cannot_be_in_the_same_place(write, settings: str, place: str) -> None:
    text = VALID + f"[sinks.one]\n{settings}\n[sinks.two]\n{settings}\n"
    load(write(text))
    with pytest.raises(ConfigurationError, match=r"sinks\.one and sinks\.two write to the same place"):
        load(write(text + f'{place} = "one"\n'))


_PLACES = {
    "opensearch": ("urls = ['{}']", "prefix"),
    "redis": ("url = '{}'", "prefix"),
    "warehouse": ("url = '{}'", "schema"),
    "delta": ("root = '{}'", "prefix"),
}


def _two_sinks(kind: str, one: str, two: str) -> str:
    address, prefix = _PLACES[kind]
    return VALID + "".join(
        f'[sinks.{name}]\ntype = "{kind}"\n{address.format(text)}\n{prefix} = "p"\n'
        for name, text in (("one", one), ("two", two))
    )


@pytest.mark.parametrize(
    ("kind", "one", "two"),
    [
        ("opensearch", "http://127.0.0.1:1", "http://localhost:1"),
        ("opensearch", "http://h", "http://H:9200/"),
        ("opensearch", "https://h:443", "https://h."),
        ("opensearch", "http://a:1', 'http://b:1", "http://b:1', 'http://c:1"),
        ("redis", "redis://h:6379", "redis://h:6379/0"),
        ("redis", "redis://h/1", "redis://me@h:6379/2?db=1"),
        ("redis", "redis://[::1]", "redis://localhost:6379/"),
        ("redis", "unix:///run/r.sock", "unix:///run/r.sock?db=0"),
        ("warehouse", "postgresql+psycopg://u@h/d", "postgresql+psycopg://u@h:5432/d"),
        ("warehouse", "postgresql://v@h/d", "postgresql+psycopg://u@h/d?sslmode=require"),
        ("warehouse", "postgresql://h/d", "postgresql:///d?host=h&port=5432"),
        ("warehouse", "postgresql://d@127.0.0.1", "postgresql://x@[::1]:5432/d"),
        ("warehouse", "duckdb:////a/b.duckdb", "duckdb+duckdb_engine:////a/../a/b.duckdb?memory_limit=1GB"),
        ("delta", "s3://b/x", "s3a://b/x/"),
        ("delta", "/lake", "file:///a/../lake/"),
    ],
)
def test_a_place_is_known_by_its_other_names(write, kind: str, one: str, two: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sinks\.one and sinks\.two write to the same place"):
        load(write(_two_sinks(kind, one, two)))


@pytest.mark.parametrize(
    ("kind", "one", "two"),
    [
        ("opensearch", "http://h", "https://h"),
        ("opensearch", "http://h/a", "http://h/b"),
        ("redis", "redis://h/1", "redis://h/10"),
        ("redis", "redis://h", "redis://i"),
        ("redis", "unix:///run/r.sock", "unix:///run/r.sock?db=1"),
        ("warehouse", "postgresql://u@h/d", "postgresql://u@h/e"),
        ("warehouse", "postgresql://u@h/d", "postgresql://u@h:5433/d"),
        ("warehouse", "postgresql://u@h", "postgresql://v@h"),
        ("warehouse", "postgresql:///d?host=h", "postgresql:///d?host=i"),
        ("delta", "s3://b/x", "gs://b/x"),
        ("delta", "abfss://a@s/x", "abfss://b@s/x"),
    ],
)
def test_places_that_are_not_the_same_may_be_in_one_file(write, kind: str, one: str, two: str) -> None:
    load(write(_two_sinks(kind, one, two)))


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
        ("host=db dbname=shop user=lockstep", "postgresql://lockstep:geheim@db/shop", "source.dsn"),
        ("user=lockstep", "user=lockstep password\\t=\\tgeheim", "source.dsn"),
        ("user=lockstep", "user=lockstep password=very geheim", "source.dsn"),
        ("host=db dbname=shop user=lockstep", "postgresql://lockstep:ge%zzgeheim@db/shop", "source.dsn"),
        ('type = "redis"', 'type = "redis"\nurl = "redis://cache:6379/0?password=geheim"', "sinks.cache.url"),
        ('type = "redis"', 'type = "redis"\nlogin = { password = "geheim" }', "sinks.cache.login.password"),
        ('type = "redis"', 'type = "redis"\nurl = "redis://:geheim@cache:6379/0"', "sinks.cache.url"),
        ("host=db dbname=shop user=lockstep", "postgresql://lockstep:ge/heim@db/shop", "source.dsn"),
        ("kafka:9092", "user:geheim@kafka:9092", "kafka.bootstrap_servers"),
        ("kafka:9092", "a:9092,SASL_SSL://user:geheim@b:9092", "kafka.bootstrap_servers"),
        *(
            ('type = "redis"', f'type = "warehouse"\nurl = "postgresql+psycopg://{address}"', "sinks.cache.url")
            for address in (
                "u:geheim#x@h/d",
                "u:geheim/x@h/d",
                "u:geheim[x@h/d",
                "u:geheim?x@h/d",
                "u:@geheim@h/d",
                "u@firm:geheim@h/d",
                "u@h/d?sslpassword=geheim",
                "u@h/d?oauth_client_secret=geheim",
            )
        ),
        ('type = "redis"', 'type = "opensearch"\nurls = ["https://a:1", "https://u:geheim#x@b:1"]', "sinks.cache.urls"),
        ('type = "redis"', 'type = "delta"\nroot = "s3://key:geheim@bucket/x"', "sinks.cache.root"),
        ('type = "redis"', 'type = "delta"\nroot = "abfss://c@a.net/x?sv=1&sig=geheim"', "sinks.cache.root"),
        ('type = "redis"', 'type = "opensearch"\nurls = ["https://a:1/?http_auth=u:geheim"]', "sinks.cache.urls"),
        (
            'type = "redis"',
            'type = "delta"\nroot = "s3://b"\nstorage_options = { endpoint = "http://u:geheim@h:1" }',
            "sinks.cache.storage_options.endpoint",
        ),
        ("[kafka]", '[spark]\ncheckpoint_directory = "s3a://key:geheim@bucket"\n[kafka]', "checkpoint_directory"),
        *(
            ("[kafka]", f'[spark.conf]\n"{name}" = "{value}"\n[kafka]', "spark.conf")
            for name, value in (
                ("spark.hadoop.fs.s3a.secret.key", "geheim"),
                ("spark.hadoop.fs.azure.account.key.me.dfs.core.windows.net", "geheim"),
                ("spark.hadoop.fs.s3a.session.token", "geheim"),
                ("spark.ssl.keyPassword", "geheim"),
                ("spark.executorEnv.AWS_SECRET_ACCESS_KEY", "geheim"),
                ("spark.driver.extraJavaOptions", "-Xss2m -Djavax.net.ssl.trustStorePassword=geheim"),
                ("spark.jars.repositories", "https://a/m2,https://u:geheim@b/m2"),
            )
        ),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_shown(write, old: str, new: str, path: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(write(VALID.replace(old, new)))
    assert path in str(caught.value)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("host=db dbname=shop user=lockstep", "postgresql://lockstep@db:5432,db2:5432/shop?sslmode=require"),
        ("kafka:9092", "SASL_SSL://a:9092,SASL_SSL://b:9092"),
        ('type = "redis"', 'type = "redis"\nurl = "redis://me@[::1]:6379/0?client_name=a"'),
        ('type = "redis"', 'type = "warehouse"\nurl = "postgresql+psycopg://u@h:5432/d?application_name=a%40b"'),
        ('type = "redis"', 'type = "warehouse"\nurl = "duckdb:////a/b:c@d.duckdb"'),
        ('type = "redis"', 'type = "delta"\nroot = "abfss://container@account.dfs.core.windows.net/lake"'),
        *(
            ("[kafka]", f'[spark.conf]\n"{name}" = "{value}"\n[kafka]')
            for name, value in (
                ("spark.kubernetes.executor.secrets.lockstep", "/run/secrets"),
                ("spark.kubernetes.executor.secretKeyRef.WORD", "name:key"),
                ("spark.authenticate.secret.file", "/run/secrets/spark"),
                ("spark.kubernetes.authenticate.submission.oauthTokenFile", "/run/token"),
                ("spark.hadoop.fs.s3a.endpoint", "https://store:9000"),
                ("spark.driver.extraJavaOptions", "-Duser.timezone=UTC"),
            )
        ),
    ],
)
def test_what_only_looks_like_a_secret_is_accepted(write, old: str, new: str) -> None:
    load(write(VALID.replace(old, new)))


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


@pytest.mark.parametrize("name", ["", "lockstep.toml/below", "n" * 300])
def test_what_is_no_file_is_a_configuration_error(write, tmp_path: Path, name: str) -> None:
    write(VALID)
    with pytest.raises(ConfigurationError, match=r"can't be read: .*\n.*--config"):
        load(tmp_path / name)


def test_a_byte_order_mark_before_the_file_is_no_part_of_it(write) -> None:
    assert load(write("\ufeff" + VALID)).pipeline.name == "shop"


def test_texts_that_are_no_tables_are_named_where_they_are(write) -> None:
    text = VALID.replace("public.items", "items").replace(
        'tables = ["public.orders"]', 'tables = ["nonsense", "orders"]'
    )
    with pytest.raises(ConfigurationError) as caught:
        load(write(text))
    source, cache = caught.value.problems
    assert source.startswith("source.tables: not a table name: 'items'")
    assert cache.startswith("sinks.cache.tables: not a table name: 'nonsense'")
    assert "not a table name: 'orders'" in cache


def _assert_only_problem(path: Path, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(problem)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('bootstrap_servers = "kafka:9092"\n', "", "kafka.bootstrap_servers: is missing"),
        ('type = "redis"\n', "", "sinks.cache.type: is missing: 'opensearch', 'redis', 'warehouse', 'delta'"),
        (
            'type = "redis"',
            'type = "rediss"',
            "sinks.cache.type: 'rediss' is none of 'opensearch', 'redis', 'warehouse', 'delta'",
        ),
        ('tables = ["public.orders"]', 'tables = "public.orders"', "sinks.cache.tables: must be a list, in [ ]"),
        *(
            (
                old,
                f'{new} = "yes"\n' + (old if old == "[kafka]" else ""),
                f"{setting}: must be true or false, without quotes",
            )
            for old, new, setting in (
                ('type = "redis"', 'type = "warehouse"\nurl = "postgresql://w"\nsynced_at', "sinks.cache.synced_at"),
                ("[kafka]", 'options."public.items".append_only', "source.options.public.items.append_only"),
            )
        ),
        (
            'type = "redis"',
            'type = "warehouse"\nurl = "postgresql://w"\nhistory = "yes"',
            "sinks.cache.history: must be true, false, or a list of tables in [ ]",
        ),
        ('type = "redis"', 'type = "redis"\nlogin = "me"', "sinks.cache.login: must be a section, or a table in { }"),
        (
            'type = "redis"',
            'type = "redis"\nmask = { "public.orders.phone" = "hash" }',
            "sinks.cache: mask: a hash needs a salt",
        ),
    ],
)
def test_problems_speak_of_the_file_and_not_of_our_code(write, old: str, new: str, problem: str) -> None:
    _assert_only_problem(write(VALID.replace(old, new)), problem)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "[kafka]",
            '[kafka]\ntls = {}\nusername = "u"\npassword_file = "p"',
            "kafka: username, password_file without sasl_mechanism",
        ),
        ('type = "redis"', 'type = "redis"\ntls = { ca_file = "ca" }', "sinks.cache: tls is set"),
        (
            'type = "redis"',
            'type = "opensearch"\nurls = ["https://a:1", "http://b:1"]\ntls = { ca_file = "ca" }',
            "sinks.cache: tls is set",
        ),
        ('type = "redis"', 'type = "redis"\nprefix = ""', "sinks.cache.prefix: "),
        ("[kafka]", 'publication = ""\n[kafka]', "source.publication: "),
        ("[kafka]", "heartbeat_interval_s = inf\n[kafka]", "source.heartbeat_interval_s: "),
        (
            "[kafka]",
            'options = { "public.orders" = { key = ["a"] }, "\\"public\\".orders" = { key = ["b"] } }\n[kafka]',
            "source: options names a table twice",
        ),
    ],
)
def test_a_setting_that_would_have_no_effect_is_refused(write, old: str, new: str, problem: str) -> None:
    _assert_only_problem(write(VALID.replace(old, new)), problem)


def test_a_secret_that_is_no_text_is_told_and_not_shown(write, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"geheim\xff")
    text = VALID.replace("[kafka]", 'password_file = "secret"\n[kafka]') + 'login = { password_file = "secret" }\n'
    config = load(write(text))
    for password in (config.source.password, config.sinks["cache"].login.read_password):
        with pytest.raises(LockstepError, match="can't be read: it isn't text") as caught:
            password()
        assert "geheim" not in str(caught.value)


_APPEND_ONLY = VALID.replace('"public.items"', '"public.items", "public.log"') + (
    "[source.options.'public.log']\nappend_only = true\n"
)
_DWH = '[sinks.dwh]\ntype = "warehouse"\nurl = "postgresql://db/dwh"\n'


def test_sinks_that_can_not_take_append_only_tables_say_so(write) -> None:
    text = _APPEND_ONLY.replace('tables = ["public.orders"]', 'tables = ["public.orders", "public.log"]')
    with pytest.raises(ConfigurationError) as caught:
        load(write(text))
    assert "which a sink of type 'redis' can't take: public.log; a warehouse and Delta tables can" in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            'exclude = ["public.log._operation"]',
            "columns that append-only tables need in a sink: public.log._operation",
        ),
        ('history = ["public.log"]', "history names append-only tables, whose events are all kept anyway: public.log"),
    ],
)
def test_settings_that_mean_nothing_for_append_only_tables_are_refused(write, setting: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(write(f'{_APPEND_ONLY}{_DWH}tables = ["public.log"]\n{setting}\n'))
    assert words in str(caught.value)


def test_settings_may_speak_of_an_append_only_table_that_the_sink_has_and_of_no_other(write) -> None:
    load(write(f'{_APPEND_ONLY}{_DWH}tables = ["public.log"]\nexclude = ["public.log.secret"]\n'))
    with pytest.raises(ConfigurationError) as caught:
        load(write(f'{_APPEND_ONLY}{_DWH}exclude = ["public.log.secret"]\n'))
    assert "sinks.dwh names tables that aren't captured with a key: public.log" in str(caught.value)


@pytest.mark.parametrize(
    ("tables", "excluded", "told"),
    [
        ('["public.orders", "public.*"]', '["public.orders"]', "leaves out what tables names: public.orders"),
        ('["public.orders"]', '["public.*_old"]', "tables has no pattern"),
        ('["public.*", "public.*"]', "[]", "names a table twice"),
        ('["public.orders", "a.b.*"]', "[]", "not a table name: 'a.b.*'"),
    ],
)
def test_patterns_that_can_not_be_meant_are_refused(write, tables: str, excluded: str, told: str) -> None:
    text = VALID.replace('["public.orders", "public.items"]', f"{tables}\nexclude_tables = {excluded}", 1)
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        read(write(text))
