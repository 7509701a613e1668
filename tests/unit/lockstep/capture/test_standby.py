"""What a capture that stands by says of its configuration."""

from dataclasses import replace
from pathlib import Path

from cdc.model.table import TableName
from lockstep.capture.standby import differences
from tests.configurations import configured
from tests.history import state as any_state

STATE = replace(
    any_state(),
    system_id="77",
    publication="lockstep_shop",
    memberships={TableName("public", "t"): "", TableName("public", "u"): ""},
)


def test_one_that_would_go_on_otherwise_says_how(tmp_path: Path) -> None:
    pipeline = configured(tmp_path, tables=["public.t", "public.u"]).as_pipeline()
    assert list(differences(pipeline, STATE, "77")) == list(differences(pipeline, STATE, None)) == []
    assert list(differences(pipeline, None, "77")) == [
        "Kafka holds no state of the slot for pipeline shop; are pipeline.name and [kafka] the same?"
    ]
    other = replace(STATE, publication="q", memberships={TableName("public", "t"): "", TableName("public", "gone"): ""})
    assert list(differences(pipeline, other, "78")) == [
        "the source's system identifier is 78, not 77",
        "source.publication is lockstep_shop, not q",
        "source.tables lacks public.gone",
        "source.tables has public.u as well",
    ]
    beginning = replace(STATE, memberships={})
    assert list(differences(pipeline, beginning, "77")) == []
