"""Signs requests for Amazon OpenSearch Service: botocore finds the keys, renews them and signs."""

from typing import Any, Final

from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from sinks.opensearch.answers import RETRY_AFTER_S

_HINT: Final = "see AWS' guide for where keys are looked for; then run `lockstep doctor`"


class Signing:
    """Signs requests. Thread-safe. Raises ConfigurationError without botocore, and LockstepError without keys."""

    def __init__(self, region: str) -> None:
        try:
            from botocore.exceptions import BotoCoreError
            from botocore.session import Session
        except ImportError:
            raise ConfigurationError(
                "aws_region of this sink needs botocore, which isn't installed",
                hint="pip install 'lockstep[aws]' wherever Lockstep or an executor of Spark runs",
            ) from None
        from opensearchpy import Urllib3AWSV4SignerAuth

        self._errors = BotoCoreError
        try:
            keys = Session().get_credentials()
        except BotoCoreError as error:
            raise LockstepError(
                f"the AWS keys of this sink can't be read: {type(error).__name__}", hint=_HINT
            ) from None
        if keys is None:
            raise LockstepError("aws_region of this sink is set, and AWS keys are found nowhere", hint=_HINT)
        self._sign = Urllib3AWSV4SignerAuth(keys, region)

    def __call__(self, method: str, url: str, body: bytes | None, /) -> dict[str, str]:
        """The headers of a request. Raises Unavailable when the keys can't be renewed now."""
        try:
            signed: dict[str, Any] = self._sign(method, url, body)
        except self._errors as error:
            raise Unavailable(
                f"the AWS keys of this sink can't be renewed: {type(error).__name__}",
                hint=_HINT,
                retry_after_s=RETRY_AFTER_S,
            ) from None
        return signed
