"""Sets up `.venv` and reports each step: `python3 -m stack.environment [--dev]`, which `make setup` runs.

Nothing is installed yet, so it imports only the standard library. Each step is a line on standard error. PySpark comes
as source: its 490 MB of jars are built into a wheel while the other packages and the servers arrive.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILD_LOCK = ROOT / "requirements-build.lock"
LOCK = ROOT / "requirements.lock"
DEV_LOCK = ROOT / "requirements-dev.lock"

# Modules are compiled when they are first used: most never are.
INSTALL = ("-m", "pip", "install", "--disable-pip-version-check", "--no-compile", "--progress-bar", "off")
LOCKED = (*INSTALL, "--no-deps", "--require-hashes")

PACKAGES_A_LINE = 15
MB_A_LINE = 50

_ENTRY = re.compile(r"^[a-z0-9]")
_FETCHED = re.compile(r"^\s*(?:Downloading|Using cached) (?P<name>\S+) \((?P<size>[\d.]+) (?P<unit>bytes|kB|MB|GB)\)")
_MB = {"bytes": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}


class StepFailed(Exception):
    """A command of a step failed. The text is the last lines of its output."""


def entries(lock: Path) -> dict[str, str]:
    """Name and version -> text of each entry of a lock file: its pin, conditions and hashes."""
    found: dict[str, str] = {}
    name = ""
    for line in lock.read_text(encoding="utf-8").splitlines(keepends=True):
        if _ENTRY.match(line):
            name = line.split()[0]
            found[name] = ""
        if name:
            found[name] += line
    return found


def pip_progress(lines: Iterator[str], total: int) -> Iterator[str]:
    """Lines to report from pip's output: how many of `total` packages have arrived, and how much."""
    count, arrived, reported = 0, 0.0, 0.0
    for line in lines:
        if fetched := _FETCHED.match(line):
            count += 1
            arrived += float(fetched["size"]) * _MB[fetched["unit"]]
            if count % PACKAGES_A_LINE == 0 or arrived - reported >= MB_A_LINE:
                reported = arrived
                yield f"{count} of {total}, {arrived:.0f} MB"
        elif line.startswith("Building wheels"):
            yield f"building {line.partition(':')[2].strip()}"
        elif line.startswith("Installing collected packages"):
            yield f"installing {line.count(',') + 1}"


def run(command: Sequence[str], report: Callable[[Iterator[str]], object], **environment: str) -> None:
    """Run a command and pass on its lines as they come. Raises StepFailed with the last of them."""
    last: list[str] = []

    def lines(stream: Iterator[str]) -> Iterator[str]:
        for line in stream:
            last.append(line)
            del last[:-20]
            yield line

    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    ) as process:
        assert process.stdout is not None
        report(lines(process.stdout))
    if process.returncode:
        raise StepFailed("".join(last).rstrip())


class Setup:
    """The steps that make one environment. Each line begins with the seconds since the start."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.python = str(directory / "bin" / "python")
        self._start = time.monotonic()
        self._printing = threading.Lock()

    def say(self, step: str, text: str) -> None:
        """Print one line: seconds since the start, the step, and its progress."""
        with self._printing:
            print(f"{time.monotonic() - self._start:4.0f} s  {step}: {text}", file=sys.stderr, flush=True)  # noqa: T201

    def install(self, step: str, locked: Mapping[str, str], *options: str, **environment: str) -> None:
        """Install locked entries with one pip, and report what arrives."""
        with tempfile.TemporaryDirectory() as folder:
            lock = Path(folder, "locked.txt")
            lock.write_text("".join(locked.values()), encoding="utf-8")

            def report(lines: Iterator[str]) -> None:
                for text in pip_progress(lines, len(locked)):
                    self.say(step, text)

            run([self.python, *LOCKED, *options, "-r", str(lock)], report, **environment)

    def relay(self, step: str, *command: str) -> None:
        """Run one of our commands, and report each of its lines."""

        def report(lines: Iterator[str]) -> None:
            for line in lines:
                self.say(step, line.rstrip())

        run([self.python, *command], report)

    def runtime(self) -> None:
        """Install everything that the pipeline and the local servers need."""
        locked = entries(LOCK)
        spark = {name: text for name, text in locked.items() if name.startswith("pyspark==")}
        others = {name: text for name, text in locked.items() if name not in spark}
        self.say("environment", f"{self.directory}, for {len(locked)} packages and the local servers")
        venv.create(self.directory, with_pip=True, symlinks=True)
        self.install("build tools", entries(BUILD_LOCK))
        with ThreadPoolExecutor(1) as beside:
            built = beside.submit(self._pyspark, spark)
            self.install("packages", others)
            self._own_code()
            self.relay("servers", "-m", "stack.jars", "fetch")
            built.result()

    def development(self) -> None:
        """Add the packages for tests, format, lint and types."""
        locked = entries(DEV_LOCK)
        self.say("development", f"{len(locked)} packages")
        self.install("development", locked)
        # Making it takes as long as it saves in some six starts.
        self.say("class archive", "starting Spark once, so that later starts take half the time")
        try:
            self.relay("class archive", "-m", "lockstep.class_archive")
        except StepFailed:
            self.say("class archive", "none; Spark starts without it")

    def _pyspark(self, locked: Mapping[str, str]) -> None:
        self.say("PySpark", "434 MB, built from source")
        configuration = self.directory / "wheel.cfg"
        # Packing the jars without compression halves the processor time.
        configuration.write_text("[bdist_wheel]\ncompression = stored\n", encoding="utf-8")
        self.install("PySpark", locked, "--no-build-isolation", DIST_EXTRA_CONFIG=str(configuration))

    def _own_code(self) -> None:
        for kernel in (*ROOT.glob("cdc/event_format/_kernel.*.so"), *ROOT.glob("sinks/_kernel.*.so")):
            kernel.unlink()
        self.say("kernels", "compiling")
        run([self.python, *INSTALL, "--quiet", "--no-deps", "--no-build-isolation", "-e", "."], list)
        self.relay("kernels", "-c", _KERNELS)


_KERNELS = """\
from cdc.stream.row_encoding import chosen_row_encoding
from sinks.sink_kernel import chosen_sink_kernel
print(f"rows are encoded by {chosen_row_encoding()}, and written to sinks by {chosen_sink_kernel()}")
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Set up the environment. `--dev` adds the packages for development to an existing one."""
    parser = argparse.ArgumentParser(prog="python3 -m stack.environment", description="set up the environment")
    parser.add_argument("--directory", type=Path, default=Path(".venv"))
    parser.add_argument("--dev", action="store_true")
    options = parser.parse_args(arguments)
    setup = Setup(options.directory.absolute())
    try:
        setup.development() if options.dev else setup.runtime()
    except (OSError, StepFailed, subprocess.SubprocessError) as error:
        print(f"error: setup failed: {error}\nrun it again: what has arrived is kept", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    setup.say("done", str(options.directory))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
