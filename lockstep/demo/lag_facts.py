"""What the demo reads out of a lag report. Pure."""

from monitor.lag import LagReport


def is_published(lag: LagReport) -> bool:
    """Whether anything is known to be complete in Kafka; the snapshot is, when it is done."""
    return any(stage.name == "in Kafka" and stage.lsn is not None for stage in lag.stages)


def applied_lsns(lag: LagReport) -> dict[str, int | None]:
    """Sink -> the LSN up to which it has applied everything."""
    prefix = "applied: "
    return {stage.name.removeprefix(prefix): stage.lsn for stage in lag.stages if stage.name.startswith(prefix)}


def lag_sentence(lag: LagReport) -> str:
    return ", ".join(
        f"{stage.name} "
        + ("nothing yet" if stage.bytes_behind is None else f"{stage.bytes_behind:,} bytes behind")
        + ("" if stage.events_behind is None else f" ({stage.events_behind:,} events)")
        for stage in lag.stages[1:]
    )
