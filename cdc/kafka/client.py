"""Makes clients of Kafka. One that can't be made is an error of ours, as what brokers refuse is."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from cdc.model.errors import ConfigurationError, Unavailable

_Client = TypeVar("_Client")

_UNHEARD: Final = logging.getLogger("lockstep.librdkafka")
"""Where the client's own lines go. It prints some at any level, also of what is mended by itself a moment later; what
matters reaches us as an error."""
_UNHEARD.propagate = False
_UNHEARD.addHandler(logging.NullHandler())

_BAD_SETTINGS: Final = (KafkaError._INVALID_ARG, KafkaError._NOT_IMPLEMENTED)


def new_client(kind: Callable[[dict[str, Any]], _Client], settings: Mapping[str, Any]) -> _Client:
    """A client of librdkafka's with these settings. It hasn't connected yet.

    Raises ConfigurationError when they can't be used, as where a file of a certificate is missing. Raises Unavailable
    when the machine has no room for the client.
    """
    try:
        return kind({**settings, "logger": _UNHEARD})
    except KafkaException as error:
        details: KafkaError = error.args[0]
        if details.code() in _BAD_SETTINGS:
            raise ConfigurationError(
                f"the settings of Kafka can't be used: {details.str()}",
                hint="mend [kafka] in lockstep.toml: the files that ca_file, certificate_file and key_file name must be"
                " there and readable, and SASL needs sasl_mechanism, username and a password",
            ) from error
        raise Unavailable(f"no client of Kafka can be made now: {details.str()}") from error
