"""PostgreSQL from packaged binaries: the source, a second cluster as the warehouse, older majors for tests.

Everybody on this machine can reach the port, so there is a password, in a file that only we may read. PostgreSQL
refuses to run as root: for root, server and data belong to the user `nobody`. If that user can't reach the stack's
directory, they are in the system's directory for temporary files.
"""

import hashlib
import os
import pwd
import secrets
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from signal import SIGINT
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from stack import ports as tcp
from stack import versions
from stack.cache import cache_dir
from stack.errors import StackError
from stack.lock import locked
from stack.process import Account, Launch, ProcessId, Tail
from stack.server import Ports

USER = "postgres"
_UNPRIVILEGED = "nobody"

# What Compose's servers get as well.
SOURCE_SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "50",
    "max_wal_senders": "50",
}
WAREHOUSE_SETTINGS: dict[str, str] = {}

# A killed server loses nothing: its writes survive its end. With `synchronous_commit = off`, commits that are still in
# its memory would be lost.
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}

# Written last, with the file count and size of an intact copy: cleaners of temporary directories remove single files.
COMPLETE = ".complete"


class Postgres:
    """One cluster with one database."""

    # Fast shutdown; SIGTERM would wait for every client to leave.
    stop_signal = SIGINT

    def __init__(
        self,
        name: str,
        *,
        database: str,
        settings: Mapping[str, str],
        passfiles: Path,
        durable: bool = True,
        major: int = versions.POSTGRES_MAJOR,
    ) -> None:
        """Without `durable`, a crash of the machine (not of the server) may lose data, and commits are fast.

        `passfiles` is the directory of the file in which libpq finds the password. A `major` other than the stack's own
        is fetched when it is first started.
        """
        self.name = name
        self.version = versions.POSTGRES_SERVER if major == versions.POSTGRES_MAJOR else _server_version(major)
        self._major = major
        # Each cluster has its own, and the version is part of a cluster's name.
        self._passfile = passfiles.absolute() / f"{name}-{self.version}.pgpass"
        self.database = database
        self._settings = dict(settings) if durable else {**settings, **_NOT_DURABLE}

    def ports(self, kept: Ports, taken: Collection[int]) -> dict[str, int]:
        return {"main": tcp.pick(kept.get("main"), taken=taken)}

    def prepare(self, ports: Ports, directory: Path) -> Launch:
        """Unpack the server, initialise the cluster once, and remove a killed server's lock file."""
        account = _account()
        home = home_of(directory) / f"{self.name}-{self.version}"
        binaries = _binaries(self._major, account)
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
        data = home / "data"
        if not data.exists():
            if home.parent != directory:
                own_folder(home.parent)
            home.mkdir(parents=True, exist_ok=True)
            if account is not None:
                os.chown(home, account.uid, account.gid)
                home.chmod(0o700)
            self._passfile.unlink(missing_ok=True)
            _initialise(binaries, data, environment, account)
        remove_stale_lock(data)
        settings = {
            "listen_addresses": tcp.HOST,
            # Nothing outside may open it, and socket paths have a length limit.
            "unix_socket_directories": "",
            **self._settings,
        }
        options = [option for key, value in settings.items() for option in ("-c", f"{key}={value}")]
        if not self._passfile.exists():
            command = [str(binaries / "bin" / "postgres"), "--single", "-D", str(data), *options, "postgres"]
            _set_password(command, data, environment, account, self._passfile)
        return Launch(
            command=[str(binaries / "bin" / "postgres"), "-D", str(data), "-p", str(ports["main"]), *options],
            environment=environment,
            directory=home,
            log=directory / "logs" / f"{self.name}.log",
            account=account,
        )

    def is_ready(self, ports: Ports, tail: Tail) -> bool:
        """It accepts connections, and our database exists: this creates it."""
        try:
            with psycopg.connect(self._dsn(ports, "postgres"), autocommit=True, connect_timeout=2) as connection:
                database_row = connection.execute(
                    "select from pg_database where datname = %s", [self.database]
                ).fetchone()
                if database_row is None:
                    connection.execute(sql.SQL("create database {}").format(sql.Identifier(self.database)))
            return True
        except psycopg.OperationalError:
            return False

    def actual_ports(self, ports: Ports, tail: Tail) -> dict[str, int]:
        return dict(ports)

    def address(self, ports: Ports) -> str:
        """A libpq connection string of keywords and values."""
        return self._dsn(ports, self.database)

    def url(self, ports: Ports) -> str:
        """The same for SQLAlchemy."""
        passfile = quote(str(self._passfile), safe="/")
        return f"postgresql+psycopg://{USER}@{tcp.HOST}:{ports['main']}/{self.database}?passfile={passfile}"

    def _dsn(self, ports: Ports, database: str) -> str:
        return make_conninfo(
            host=tcp.HOST, port=ports["main"], dbname=database, user=USER, passfile=str(self._passfile)
        )


def _server_version(major: int) -> str:
    """An older server's version: its package's without the build number."""
    try:
        return versions.POSTGRES_OLDER[major].rpartition(".")[0]
    except KeyError:
        majors = ", ".join(map(str, (*versions.POSTGRES_OLDER, versions.POSTGRES_MAJOR)))
        raise StackError(f"no packaged PostgreSQL {major}", hint=f"the lock has: {majors}") from None


def _account() -> Account | None:
    """The user who runs the server when we are root."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam(_UNPRIVILEGED)
    return Account(entry.pw_uid, entry.pw_gid)


def is_reachable(path: Path) -> bool:
    """Whether any user may pass through every existing folder on the way to it."""
    resolved = path.resolve()
    return all(folder.stat().st_mode & 0o001 for folder in (resolved, *resolved.parents) if folder.exists())


def home_of(directory: Path) -> Path:
    """Where the clusters of a stack are: in its directory, or elsewhere if their user can't go there."""
    if _account() is None or is_reachable(directory):
        return directory
    name = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"lockstep-{name}")


def own_folder(folder: Path) -> None:
    """Make a folder of a predictable name where everybody may write. Refuses somebody else's."""
    try:
        folder.mkdir(mode=0o711)
    except FileExistsError:
        status = folder.lstat()
        if folder.is_symlink() or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise StackError(f"{folder} belongs to somebody else", hint="remove it, or set TMPDIR") from None


def _binaries(major: int, account: Account | None) -> Path:
    """Unpack the server below the cache; for root, where the other user can run it."""
    from stack import jars

    parent = cache_dir()
    if account is not None and not is_reachable(parent):
        parent = Path(tempfile.gettempdir(), f"lockstep-servers-{os.geteuid()}")
        own_folder(parent)
    # Two clusters start at once, and several stacks may.
    with locked(parent / "unpack.lock"):
        (archive,) = jars.jar_set(jars.postgres_set(major))
        target = parent / archive.stem
        if not is_complete(target):
            _unpack(archive, target)
    return target


def _unpack(archive: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="unpack-", dir=target.parent) as private:
        fresh = Path(private, "server")
        with zipfile.ZipFile(archive) as jar:
            (name,) = (entry for entry in jar.namelist() if entry.endswith(".txz"))
            with jar.open(name) as content, tarfile.open(fileobj=content, mode="r:xz") as tar:
                # Python before 3.11.4 has no filters; the archive's hash was checked, so nothing rests on this.
                tar.extraction_filter = getattr(tarfile, "tar_filter", None)
                tar.extractall(fresh)  # noqa: S202 - see above
        fresh.chmod(0o755)
        files, size = measure(fresh)
        (fresh / COMPLETE).write_text(f"{files} {size}", encoding="ascii")
        if target.exists():
            target.rename(Path(private, "damaged"))
        fresh.rename(target)


def measure(folder: Path) -> tuple[int, int]:
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.name != COMPLETE]
    return len(sizes), sum(sizes)


def is_complete(folder: Path) -> bool:
    marker = folder / COMPLETE
    if not marker.is_file():
        return False
    files, size = measure(folder)
    return marker.read_text(encoding="ascii") == f"{files} {size}"


def _initialise(binaries: Path, data: Path, environment: Mapping[str, str], account: Account | None) -> None:
    """Make the cluster beside its place and move it there when it is complete: an interrupt leaves no half of one."""
    partial = data.with_name("initdb")
    shutil.rmtree(partial, ignore_errors=True)
    # Nobody is let in before there is a password.
    command = [str(binaries / "bin" / "initdb"), "-D", str(partial), "-U", USER, "-A", "reject", "-E", "UTF8"]
    done = _run([*command, "--locale=C"], data.parent, environment, account)
    if done.returncode:
        raise StackError(f"initdb failed in {partial}:\n{(done.stdout + done.stderr).strip()}")
    partial.rename(data)


def _set_password(
    single_user: list[str], data: Path, environment: Mapping[str, str], account: Account | None, passfile: Path
) -> None:
    """Give the superuser a password, require one from everybody, and store it in ``passfile``, which is written last.

    ``single_user`` is the command of a server that serves only its standard input.
    """
    password = secrets.token_urlsafe(24)
    done = _run(single_user, data.parent, environment, account, given=f"alter role {USER} password '{password}'\n")
    said = done.stdout + done.stderr
    if done.returncode or "ERROR:" in said or "FATAL:" in said:
        raise StackError(f"no password could be set in {data}:\n{said.replace(password, '...').strip()}")
    rules = data / "pg_hba.conf"
    # Written in place: it belongs to the server's account.
    rules.write_text(
        "".join(f"host {databases} all {tcp.HOST}/32 scram-sha-256\n" for databases in ("all", "replication")),
        encoding="ascii",
    )
    passfile.parent.mkdir(parents=True, exist_ok=True)
    fresh = passfile.with_name(f"{passfile.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        # For every role: those made for a trial may have the same password.
        file.write(f"{tcp.HOST}:*:*:*:{password}\n")
    fresh.replace(passfile)


def _run(
    command: list[str], directory: Path, environment: Mapping[str, str], account: Account | None, *, given: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        check=False,
        cwd=directory,
        env=dict(environment),
        input=given,
        capture_output=True,
        text=True,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
    )


def remove_stale_lock(data: Path) -> None:
    """Remove `postmaster.pid` if its number belongs to another program by now, or to a dead server.

    PostgreSQL takes any live process with that number for its own server and refuses to start. Numbers are soon reused
    after a reboot or in a container. A server that does use the directory stays protected: it is a postgres process.
    """
    lock = data / "postmaster.pid"
    try:
        pid = int(lock.read_text(encoding="ascii").split("\n", 1)[0])
        if ProcessId.of(pid) is None or "postgres" not in psutil.Process(pid).name():
            lock.unlink()
    except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
        return
