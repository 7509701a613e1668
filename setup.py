"""Builds the compiled kernels beside the Python code that they speed up, where that is possible and wanted.

``LOCKSTEP_KERNEL``: ``auto``, the default, builds them if Cython, a C compiler and Python's headers are there;
``require`` fails without them; ``off`` doesn't try. All else is in ``pyproject.toml``.
"""

import os

from setuptools import Extension, setup

SOURCES = {"cdc.event_format._kernel": "cdc/event_format/_kernel.pyx", "sinks._kernel": "sinks/_kernel.pyx"}
CHOICES = ("auto", "require", "off")


def extensions() -> list[Extension]:
    """The extension modules to build."""
    choice = os.environ.get("LOCKSTEP_KERNEL") or "auto"
    if choice not in CHOICES:
        raise SystemExit(f"error: LOCKSTEP_KERNEL is {choice!r}: set it to {', '.join(CHOICES)}")
    if choice == "off":
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        if choice == "require":
            raise
        return []
    kernels = [Extension(name, [source], extra_compile_args=["-O2", "-g0"]) for name, source in SOURCES.items()]
    modules: list[Extension] = cythonize(kernels, build_dir="build/cython", quiet=True)
    for module in modules:  # Cython drops it
        module.optional = choice == "auto"
    return modules


setup(ext_modules=extensions())
