"""The configuration of the tasks' own client, and what tasks are to read."""

from pathlib import Path

import pytest

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import ConfigurationError
from cdc.settings import Tls
from jobs.executor.log_reader import Client, Range, dump_ranges, load_ranges, ranges
from jobs.spark.source import portable_client


def test_tasks_on_other_machines_get_certificates_not_their_files(tmp_path: Path) -> None:
    files = {"ca_file": "authority", "certificate_file": "certificate", "key_file": "key"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    settings = KafkaSettings(bootstrap_servers="broker:9093", tls=Tls(**{name: tmp_path / name for name in files}))
    client: Client = portable_client(settings)
    assert [client[f"ssl.{name}.pem"] for name in ("ca", "certificate", "key")] == list(files.values())
    assert not any("location" in name or str(tmp_path) in str(value) for name, value in client.items())
    with pytest.raises(ConfigurationError, match=r"gone\.pem"):
        portable_client(settings.model_copy(update={"tls": Tls(ca_file=tmp_path / "gone.pem")}))
    plain = KafkaSettings(bootstrap_servers="broker:9092")
    assert portable_client(plain) == plain.client()


def test_a_batch_is_what_lies_between_two_positions() -> None:
    ends = {("a", 0): 10, ("a", 1): 7, ("b", 0): 0, ("b", 1): 5}
    wanted = ranges({("a", 0): 4, ("a", 1): 7}, ends)
    assert wanted == [Range("a", 0, 4, 10), Range("b", 1, None, 5)]
    assert load_ranges(dump_ranges(wanted)) == wanted
    assert ranges(ends, ends) == []
