"""sinks.delta.lake"""

import pytest

from cdc.model.errors import LockstepError, Unavailable
from sinks.delta.lake import talking


def failure(error: Exception) -> LockstepError:
    with pytest.raises(LockstepError) as caught, talking():
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("Generic LocalFileSystem error: No space left on device (os error 28)", "the disk is full: free space"),
        ("Permission denied (os error 13)", "let this user read and write below the sink's root"),
        ("status 403: <Error><Code>AccessDenied</Code>", "check login of this sink, and its rights on the bucket"),
        ("Generic S3 error: Missing region", "set storage_options.aws_region of this sink"),
    ],
)
def test_what_only_a_person_can_mend_says_how(text: str, hint: str) -> None:
    error = failure(OSError(text))
    assert (isinstance(error, Unavailable), error.hint) == (False, hint)


@pytest.mark.parametrize(
    "text", ["HTTP error: error sending request", "operation timed out", "503 Service Unavailable"]
)
def test_what_ends_by_itself_is_tried_again(text: str) -> None:
    assert isinstance(failure(OSError(text)), Unavailable)


def test_a_message_tells_no_value_of_a_partition() -> None:
    error = failure(OSError("No such file: /lake/shop_g1/items/region=secret-word/customer=another/part-0.parquet"))
    assert "region=.../customer=.../part-0.parquet" in error.message
    assert "secret-word" not in str(error)
