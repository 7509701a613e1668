"""``lockstep erase``: removes for good what is kept of a deleted row."""

from typing import Final

from extensions.erase import cli
from lockstep.extension import Extension

ERASE: Final = Extension(name="erase", commands={"Operate": [cli.erase]})
