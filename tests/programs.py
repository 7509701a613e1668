"""Programs from the system's packages; `.ci/packages` installs those that CI's machines lack."""

import shutil

import pytest


def needs(program: str) -> str:
    """The program's path; skips the test if it isn't installed."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} isn't installed; it comes from the system's packages, as in .ci/packages")
    return path
