"""Facts from a lag report for the demo. Pure."""

from monitor.lag import IN_KAFKA, LagReport, Stage


def is_published(lag: LagReport) -> bool:
    """Whether anything is known to be complete in Kafka, as the snapshot is once it is done."""
    return any(stage.name == IN_KAFKA and stage.lsn is not None for stage in lag.stages)


def applied_lsns(lag: LagReport) -> dict[str, int | None]:
    return {stage.sink.label: stage.lsn for stage in lag.stages if stage.sink is not None}


def slowest_sink(lag: LagReport) -> tuple[str, float] | None:
    """The live sink that is furthest behind, and its seconds; None while one has applied nothing yet."""
    stages = [stage for stage in lag.stages if stage.sink is not None and stage.sink.is_live]
    behind = [(stage.sink.label, stage.seconds_behind) for stage in stages if stage.sink and stage.lsn is not None]
    known = [(label, seconds) for label, seconds in behind if seconds is not None]
    return max(known, key=lambda each: each[1]) if len(known) == len(stages) and known else None


def lag_sentence(lag: LagReport) -> str:
    """How many seconds capture and each sink are behind, and which have applied nothing yet, in few words."""
    named = {
        "capture" if stage.sink is None else stage.sink.label: stage
        for stage in lag.stages
        if stage.sink is not None or stage.name == IN_KAFKA
    }
    behind = [f"{who} {_seconds(stage)}" for who, stage in named.items() if stage.lsn is not None]
    waiting = [who for who, stage in named.items() if stage.lsn is None]
    if waiting == list(named):
        return "nothing is published yet"
    return "behind: " + ", ".join(behind) + (f"; nothing yet: {', '.join(waiting)}" if waiting else "")


def _seconds(stage: Stage) -> str:
    return "unknown" if stage.seconds_behind is None else f"{stage.seconds_behind:.1f} s"
