"""The compiled kernels read and write nothing beyond their memory: damaged bytes under the address sanitizer."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.row_kernels import NO_COMPILER, can_compile

ROOT = Path(__file__).parents[2]
NO_SANITIZER = "the compiler has no address sanitizer"
FLAGS = "-fsanitize=address -fno-omit-frame-pointer -g -O1"

# Runs in a process that has the sanitizer loaded; argv: directory of the instrumented module, seed, number of messages.
FUZZ = """
import ctypes, importlib.util, random, sys
from pathlib import Path
from cdc.event_format.compiled import agrees
from tests.copy_lines import copy_line
from tests.corpus.record import CORPUS
from tests.wal import UNCHANGED, RELATION_ID, data_frame, insert, update

[built] = Path(sys.argv[1]).glob("cdc/event_format/_kernel*.so")
spec = importlib.util.spec_from_file_location("cdc.event_format._kernel", built)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert agrees(module)
dice = random.Random(int(sys.argv[2]))
kinds = [module.VERBATIM, module.QUOTED, module.TEXT, module.BOOL, module.FLOAT, module.TIMESTAMP, module.TIMESTAMPTZ]
values = [
    b"", b"t", b"f", b"-0", b"1", b"1.5", b"NaN", b"2016-11-04 13:51:30+00", b"+00", b" ", b"\\x01" * 200,
    b'"' * 50, b"\\\\" * 7, "\\u20ac\\U0001f600".encode() * 9, b"x" * 3000, b"\\n" * 10900, None,
] * 4 + [b"\\xff", b"\\xed\\xa0\\x80"]
recorded = [path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))]
head = data_frame(insert(b"1"), 2**64 - 1)[:25]

def exact(content):
    # Memory of just this size, so that one byte beyond it is noticed.
    return memoryview((ctypes.c_ubyte * len(content)).from_buffer_copy(content)) if content else content

def damaged(frame):
    frame = bytearray(frame)
    for _ in range(dice.choice([0, 0, 0, 1, 2, 4])):
        place = dice.randrange(len(frame) + 1)
        action = dice.randrange(4)
        if action == 0:
            del frame[place:]
        elif action == 1:
            frame[place:place] = dice.randbytes(dice.randrange(5))
        elif action == 2:
            frame[25:] = frame[place:]
        elif place < len(frame):
            frame[place] = dice.choice([0, 255, 110, 116, 117, 78, dice.randrange(256)])
    return bytes(frame)

taken = 0
for number in range(int(sys.argv[3]) // 16):
    count = dice.choice([1, 2, 3, 8, 40])
    columns = [(b'"%s"' % dice.randbytes(dice.randrange(9)).hex().encode(), dice.choice(kinds)) for _ in range(count)]
    kernel = module.RowKernel(columns, tuple(dice.sample(range(count), dice.randrange(count + 1))))
    def row():
        likely = [b"t", None] if dice.randrange(20) else values
        return [dice.choice(likely if kind == module.BOOL else values) for _, kind in columns]
    frames = [
        head + dice.choice(recorded) if dice.randrange(9) == 0
        else data_frame(dice.choice([insert, update])(*row(), of=RELATION_ID), 2**64 - 1)
        for _ in range(16)
    ]
    frames = [exact(damaged(frame)) for frame in frames]
    while frames:
        arriving = iter(frames[1:])
        pairs, following, _ = kernel.encode(
            frames[0], lambda: next(arriving, None), relation=RELATION_ID, updates=True, prefix=b"0" * 20,
            seq=dice.choice([1, 2**32 - 2]), source=b"s" * dice.randrange(99), time=b"-1", text_max=1 << 40,
            rows_max=dice.choice([1, 99]), bytes_max=1 << 40,
        )
        taken += len(pairs)
        frames = frames[max(1, len(pairs)):]
    lines = [exact(damaged(copy_line(row()))) for _ in range(16)]
    start = 0
    while start < len(lines):
        pairs, following, _ = kernel.encode_copied(
            lines, start, prefix=b"0" * 20, source=b"s" * dice.randrange(99), lsn=2**64 - 1, time=b"-1"
        )
        taken += len(pairs)
        start = following + 1
print("taken", taken)
"""

# The same for the kernel of the sinks; the number is one of rows.
FUZZ_SINKS = """
import importlib.util, random, sys
from pathlib import Path
import orjson
from sinks.sink_kernel import agrees

[built] = Path(sys.argv[1]).glob("sinks/_kernel*.so")
spec = importlib.util.spec_from_file_location("sinks._kernel", built)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert agrees(module)
dice = random.Random(int(sys.argv[2]))
values = [
    "", "a", '"', "\\\\", "\\n", "\u20ac\U0001f600" * 9, "x" * 3000, '"' * 50, 0, -1, 10**17,
    -(10**17), 1e300, -1e-300, 0.1, True, False, None, [1],
]
odd = [b"1e1", b"1e22", b"-1e15", b"1e999", b"-", b"-0", b'"\\u0001"', b"9" * 40]
source = b',"source":{"version":"1","schema_id":"a"'

def damaged(text):
    text = bytearray(text)
    for _ in range(dice.choice([0, 0, 0, 0, 1, 2])):
        place = dice.randrange(len(text) + 1)
        action = dice.randrange(4)
        if action == 0:
            del text[place:]
        elif action == 1:
            text[place:place] = dice.randbytes(dice.randrange(5))
        elif action == 2:
            del text[:place]
        elif place < len(text):
            text[place] = dice.choice([0, 255, 34, 92, 123, 125, 44, dice.randrange(256)])
    return bytes(text)

def made(names):
    def value():
        return orjson.dumps(dice.choice(values)) if dice.randrange(30) else dice.choice(odd)
    return b"{" + b",".join(name + b":" + value() for name in names if dice.randrange(9)) + b"}"

taken = 0
for number in range(int(sys.argv[3]) // 16):
    names = [orjson.dumps("c%d" % place) for place in range(dice.choice([1, 2, 3, 8, 40]))]
    kernel = module.LineKernel(names)
    columns = names[: dice.choice([1, 1, 2, 3, 20])]
    key_starts = [(b"," if place else b"{") + name + b":" for place, name in enumerate(columns)]
    sound = b"".join(start + b"%d" % dice.randrange(99) for start in key_starts) + b"}"
    keys = [damaged(dice.choice([sound, made(columns)])) for _ in range(16)]
    rows = [None if dice.randrange(9) == 0 else damaged(made(names)) for _ in range(16)]
    tags = ["0" * dice.choice([28, 28, 28, 0, 500]) for _ in range(16)]
    ends = [dice.choice(["f", "", "x" * 900]) for _ in range(16)]
    start = 0
    while start < 16:
        _, end = kernel.lines(keys, tags, rows, ends, start, 16)
        taken += end - start
        start = end + 1
    start = 0
    while start < 16:
        end, _ = module.take_arguments(
            keys, tags, rows, start, 16, key_starts=key_starts, prefix=b"p" * dice.randrange(9),
            bytes_max=dice.choice([0, 99, 1 << 20]), names=[], values=[],
        )
        taken += end - start
        start = end + 1
    start = 0
    while start < 16:
        end, _ = module.take_documents(
            keys, tags, rows, start, 16, key_start=b"{" + names[0] + b":", head=b"h" * dice.randrange(99), middle=b"m",
            transaction="0" * 20, first_version=2**63, seq_max=2**32, bytes_max=dice.choice([99, 1 << 20]), lines=[],
        )
        taken += end - start
        start = end + 1
    head = b'{"op":"u","tag":"' + b"0" * 28 + b'","before":null,"after":'
    events = [damaged(head + (row or b"null") + source + b',"lsn":1},"ts_ms":2}') for row in rows]
    start = 0
    while start < 16:
        end = module.take_rows(events, start, source, [])
        taken += end - start
        start = end + 1
print("taken", taken)
"""

READS_BEYOND = "import ctypes; held = (ctypes.c_ubyte * 64)(); ctypes.string_at(ctypes.addressof(held), 65)"
"""A read of one byte too many."""


def built_with_sanitizer(directory: Path) -> tuple[Path, dict[str, str]]:
    """The instrumented module in this directory, and the environment that it needs."""
    if not can_compile():
        pytest.skip(NO_COMPILER)
    pytest.importorskip("Cython", reason="run make setup: Cython isn't here")
    library = Path(
        subprocess.run(
            ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False
        ).stdout.strip()
        if shutil.which("gcc")
        else ""
    )
    if not library.is_absolute() or not library.exists():
        pytest.skip(NO_SANITIZER)
    for part in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / part, directory)
    for package in ("cdc", "sinks"):
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    environment = {**os.environ, "LOCKSTEP_KERNEL": "require", "CC": "gcc", "CFLAGS": FLAGS, "LDFLAGS": FLAGS}
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "built"],
        cwd=directory,
        env=environment,
        check=True,
        capture_output=True,
    )
    return directory / "built", {
        **os.environ,
        "LD_PRELOAD": str(library.resolve()),
        # Python gives back nothing at its end; every allocation gets a red zone of its own.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(ROOT),
    }


def run(
    code: str, directory: Path, environment: dict[str, str], *arguments: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, str(directory), *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.soak
@pytest.mark.parametrize("fuzz", [FUZZ, FUZZ_SINKS], ids=["capture", "sinks"])
def test_damaged_bytes_are_read_and_written_within_bounds(tmp_path: Path, fuzz: str) -> None:
    built, environment = built_with_sanitizer(tmp_path)
    assert "heap-buffer-overflow" in run(READS_BEYOND, built, environment).stderr, "the sanitizer doesn't look"
    seed = random.randrange(2**32)
    done = run(fuzz, built, environment, seed, 50_000)
    assert done.returncode == 0, f"seed {seed}\n{done.stdout[-500:]}\n{done.stderr[-4000:]}"
    assert int(done.stdout.split()[1]) > 10_000, "most were too damaged to be taken"
