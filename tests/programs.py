"""Programs that come from the system's packages: `.ci/packages` installs them."""

import shutil

import pytest


def needs(program: str) -> str:
    """The program's path; the test is skipped where it isn't installed."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} isn't installed; .ci/packages installs it")
    return path
