"""What the demo reads out of a lag report. Pure."""

from monitor.lag import IN_KAFKA, LagReport


def is_published(lag: LagReport) -> bool:
    """Whether anything is known to be complete in Kafka; the snapshot is, when it is done."""
    return any(stage.name == IN_KAFKA and stage.lsn is not None for stage in lag.stages)


def applied_lsns(lag: LagReport) -> dict[str, int | None]:
    """Sink -> the LSN up to which it has applied everything."""
    return {stage.sink.label: stage.lsn for stage in lag.stages if stage.sink is not None}


def lag_sentence(lag: LagReport) -> str:
    return ", ".join(
        f"{stage.name} "
        + ("nothing yet" if stage.bytes_behind is None else f"{stage.bytes_behind:,} bytes behind")
        + ("" if stage.events_behind is None else f" ({stage.events_behind:,} events)")
        for stage in lag.stages[1:]
    )
