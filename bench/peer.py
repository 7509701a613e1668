"""Capture beside Debezium, if one run has measured both: on the same servers and rows, in the same minutes. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from bench import debezium, drain, latency
from bench.figures import Figure, Limit, Target

PHASE = "beside Debezium"

_PAIRS: Sequence[tuple[str, str, str, Target]] = (
    (drain.PHASE, drain.SECOND_HALF, drain.SECOND_HALF, Target(bound="at least", amount=2.5, of_limit=True)),
    (drain.PHASE, drain.PYTHON_SECOND_HALF, drain.SECOND_HALF, Target(bound="at least", amount=1.3, of_limit=True)),
    *(
        (latency.PHASE, name, name, Target(bound="at most", amount=1.0, of_limit=True))
        for name in ("commit to consumer, p50", "commit to consumer, p99")
    ),
    (latency.PHASE, latency.BROKER, latency.BROKER, Target(bound="at most", amount=1.3, of_limit=True)),
)
"""The phase and name of our figure, the name of Debezium's, and the target."""


def beside(figures: Sequence[Figure]) -> list[Figure]:
    """Our figures again, with Debezium's as their limit; none if one of the two wasn't measured."""
    known = {(figure.phase, figure.name): figure for figure in figures}
    return [
        replace(
            known[phase, name],
            phase=PHASE,
            name=f"backlog{name.removeprefix('...')}" if name.startswith("...") else name,
            limit=Limit(value=known[debezium.PHASE, theirs].value, what="Debezium in the same run"),
            target=target,
        )
        for phase, name, theirs, target in _PAIRS
        if (phase, name) in known and (debezium.PHASE, theirs) in known
    ]
