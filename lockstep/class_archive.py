"""``python -m lockstep.class_archive``: makes the archive of classes that halves the time Spark takes to start."""

import os
import sys

from cdc.model.errors import LockstepError
from jobs.spark.archive_maker import make_archive
from stack.errors import StackError
from stack.java import java_home_for_spark


def main() -> int:
    """Return 0, or 1 with the reason on standard error if no archive can be made. Nothing depends on the archive."""
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
