"""The extension ``erase``."""

from typing import Final

from extensions.erase import cli
from lockstep.extension import Extension

ERASE: Final = Extension(name="erase", commands={"Operate": [cli.erase]})
