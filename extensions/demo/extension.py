"""The demo: everything on this machine, with a sample shop and live traffic."""

from typing import Final

from extensions.demo import cli
from lockstep.extension import Extension

DEMO: Final = Extension(name="demo", commands={"Local servers": [cli.demo]})
