"""``python -m lockstep.class_archive``: makes the archive of classes that halves the time of Spark's start."""

import os
import sys

from cdc.model.errors import LockstepError
from jobs.spark.archive_maker import make_archive
from stack.errors import StackError
from stack.java import java_home_for_spark


def main() -> int:
    """Returns 1, with the reason on standard error, where there can't be one; nothing depends on it."""
    try:
        os.environ["JAVA_HOME"] = str(java_home_for_spark())
        file = make_archive()
    except (LockstepError, StackError) as error:
        print(f"Spark starts without a class archive: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(file)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
