"""The extension ``demo``."""

from typing import Final

from extensions.demo import cli
from lockstep.extension import Extension

DEMO: Final = Extension(name="demo", commands={"Local servers": [cli.demo]})
