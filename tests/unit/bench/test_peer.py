"""Figures of two programs in one run."""

from bench import debezium, drain, latency, peer
from bench.figures import Figure


def figure(phase: str, name: str, value: float) -> Figure:
    return Figure(phase=phase, name=name, value=value, unit="x")


def test_what_both_have_measured_is_compared() -> None:
    backlog, python, p99 = peer.beside(
        [
            figure(drain.PHASE, drain.SECOND_HALF, 250),
            figure(drain.PHASE, drain.PYTHON_SECOND_HALF, 129),
            figure(latency.PHASE, "commit to consumer, p99", 30),
            figure(latency.PHASE, latency.BROKER, 40),
            figure(debezium.PHASE, drain.SECOND_HALF, 100),
            figure(debezium.PHASE, "commit to consumer, p99", 31),
        ]
    )
    assert (backlog.phase, backlog.name, backlog.ratio, backlog.passed) == (
        peer.PHASE,
        "backlog second half",
        2.5,
        True,
    )
    assert (python.value, python.passed) == (129, False)
    assert p99.passed is True


def test_nothing_is_compared_without_a_peer() -> None:
    assert peer.beside([figure(drain.PHASE, drain.SECOND_HALF, 250)]) == []
