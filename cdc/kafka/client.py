"""Creates Kafka clients. Failures to create one, and refusals by brokers, become errors of ours."""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from cdc.model.errors import ConfigurationError, LockstepError, Unavailable

_Client = TypeVar("_Client")

_UNHEARD: Final = logging.getLogger("lockstep.librdkafka")
"""Receives the client's own log lines. It prints some at any level, even about problems that mend themselves a moment
later; what matters reaches us as an error."""
_UNHEARD.propagate = False
_UNHEARD.addHandler(logging.NullHandler())

_BAD_SETTINGS: Final = (KafkaError._INVALID_ARG, KafkaError._NOT_IMPLEMENTED)

_AT_THE_DOOR: Final = (KafkaError._SSL, KafkaError._AUTHENTICATION)
_UNTRUSTED: Final = "certificate verify failed"
_BATCH_BYTES: Final = 1024 * 1024
_BATCH_OVERHEAD_BYTES: Final = 128
_OF_TLS: Final = re.compile(r"SSL handshake failed|\balert\b")
_DURATION: Final = re.compile(r" \(after \d+ms in state \w+\)")


class Refused(Unavailable):
    """Brokers refuse a client, or it refuses them. Another client would be refused now, too."""


class Refusals:
    """Why brokers refuse a client, or it refuses them. The client itself only reports that nobody answers. It is the
    client's ``error_cb``, which is called while the client is polled."""

    def __init__(self) -> None:
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        # A broker that wants another certificate from us says so once it was reached.
        if error.code() in _AT_THE_DOOR or _OF_TLS.search(error.str()):
            self._last = error

    def forget(self) -> None:
        """Drop earlier errors: after an answer, they don't explain a later silence."""
        self._last = None

    def error(self) -> LockstepError | None:
        """The last error heard, as an error of ours. A broker whose certificate isn't trusted stays so when it is asked
        again. All other errors may come from a broker that is starting or stopping."""
        if self._last is None:
            return None
        words = _DURATION.sub("", self._last.str())
        if _UNTRUSTED in words:
            address = words.partition(": ")[0]
            return LockstepError(
                f"the certificate of Kafka at {address} isn't trusted: it is from an authority that isn't known here,"
                " of another name, or has expired",
                hint="set kafka.tls.ca_file to the authority's certificate, or renew the broker's with the name in"
                " kafka.bootstrap_servers; then run `lockstep doctor`",
            )
        if self._last.code() == KafkaError._AUTHENTICATION:
            hint = "check kafka.sasl_mechanism, kafka.username and the password; then run `lockstep doctor`"
        else:
            hint = (
                "set kafka.tls if the listener has TLS, with its certificate_file and key_file where brokers ask for"
                " a certificate; then run `lockstep doctor`"
            )
        return Refused(f"Kafka accepts no connection: {words}", hint=hint, retry_after_s=1.0)


def batch_bytes(*record_bytes_max: int) -> int:
    """``batch.size`` of a producer that writes to topics with these ``max.message.bytes``. Pure. Brokers compare whole
    batches with that limit: many small records would be refused as too large. A record larger than a batch is sent
    alone."""
    return max(1, min(_BATCH_BYTES, *record_bytes_max) - _BATCH_OVERHEAD_BYTES)


def new_client(kind: Callable[[dict[str, Any]], _Client], settings: Mapping[str, Any]) -> _Client:
    """A librdkafka client with these settings, not connected yet. Raises ConfigurationError if they can't be used, for
    instance if a certificate's file is missing. Raises Unavailable if the machine has no room for the client."""
    try:
        return kind({**settings, "logger": _UNHEARD})
    except KafkaException as error:
        details: KafkaError = error.args[0]
        if details.code() in _BAD_SETTINGS:
            raise ConfigurationError(
                f"the settings of Kafka can't be used: {details.str()}",
                hint="mend [kafka] in lockstep.toml: the files of kafka.tls (ca_file and others) must be"
                " there and readable, and SASL needs sasl_mechanism, username and a password",
            ) from error
        raise Unavailable(f"no client of Kafka can be made now: {details.str()}") from error
