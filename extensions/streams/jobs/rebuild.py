"""Begins to build the result of a stream query again, from what its topics hold."""

from extensions.streams.jobs.plan import StreamQueryPlan
from jobs.clock import now_ms
from jobs.generations.record import Phase, Record, begin_generation, set_phase


def begin_again(plan: StreamQueryPlan) -> int:
    """Begin another build, which the query's job makes. Returns its number.

    Builds that no reader has seen are given up. Builds before the live one stay: their rows may still wait for the
    webhook. Readers see the live build until the new one has all that the topics held when its job began. Raises
    LockstepError for another pipeline's build, and what the destination raises.
    """
    opened = plan.opened(1)
    try:
        live = opened.generations.live() or 0
        for each in plan.builds(opened):
            if each.number > live and each.is_planned:
                set_phase(opened.records, each.number, Phase.RETIRED)
                if opened.generations.live() == each.number:  # its job was faster, and readers see it
                    set_phase(opened.records, each.number, Phase.READY)
        return begin_generation(opened, Record(plan.pipeline, {}, created_at_ms=now_ms()))
    finally:
        opened.sink.close()
