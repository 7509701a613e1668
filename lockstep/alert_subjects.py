"""Which subjects the conditions of alerts can have by the configuration: what a silence may name."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from lockstep.attendant import state_directories
from lockstep.config import Config
from monitor.alerts.conditions import (
    CAPTURE,
    OF_CAPTURE,
    OF_GENERATIONS,
    OF_LIVE,
    OF_RULES,
    OF_STREAM_BUILDS,
    OF_STREAM_QUERIES,
    SERVERS,
)
from monitor.alerts.facts import certificates_of
from monitor.lag import APPLIED, IN_KAFKA, READ, RECEIVED, VISIBLE

_NUMBER: Final = re.compile(r" g[1-9]\d*$")
"""Behind the name of a sink, for a generation that isn't live."""


def subjects_of(config: Config) -> Mapping[str, Sequence[str]]:
    """Name of a condition -> its subjects, those of sinks and stream queries without the numbers of generations."""
    sinks = tuple(config.sinks)
    return {
        **dict.fromkeys(OF_CAPTURE, (CAPTURE,)),
        **dict.fromkeys((*OF_LIVE, *OF_GENERATIONS), sinks),
        "rejections-open": (*sinks, *config.stream_queries),
        **dict.fromkeys(OF_STREAM_QUERIES, tuple(config.stream_queries)),
        **dict.fromkeys(OF_RULES, tuple(config.alerts.rules)),
        "unreachable": (SERVERS,),
        "stalled": (RECEIVED, IN_KAFKA, *(f"{stage}{sink}" for stage in (READ, APPLIED, VISIBLE) for sink in sinks)),
        "certificate-expires": tuple(certificates_of(config.as_pipeline(), config.stores)),
        "disk-filling": tuple(map(str, state_directories(config))),
    }


def is_subject(condition: str, subject: str, config: Config) -> bool:
    """Whether a condition can have this subject; one of a generation with its number, where it can."""
    if condition in (*OF_GENERATIONS, *OF_STREAM_BUILDS, "stalled"):
        subject = _NUMBER.sub("", subject)
    return subject in subjects_of(config)[condition]
