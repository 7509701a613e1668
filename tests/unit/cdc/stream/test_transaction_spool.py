"""Changes of a running transaction wait in a file that nobody else sees, and come back as they were."""

import errno
import os
import stat
from pathlib import Path

import pytest

from cdc.model.errors import NotInParts
from cdc.stream import transaction_spool
from cdc.stream.transaction_spool import SpoolSpace, TransactionSpool

_MB = 1024 * 1024


@pytest.fixture
def space(tmp_path: Path) -> SpoolSpace:
    return SpoolSpace(tmp_path / "spool", bytes_max=8 * _MB)


def _files() -> list[os.stat_result]:
    """The files without a name that this process has open."""
    open_files = []
    for name in Path("/proc/self/fd").iterdir():
        try:
            found = name.stat()
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and found.st_size:
            open_files.append(found)
    return open_files


@pytest.mark.parametrize("size", [10, 100_000, 3 * _MB], ids=["in memory", "in a file", "large frames"])
def test_frames_come_back_in_order_without_those_that_are_left_out(space: SpoolSpace, size: int) -> None:
    spool = TransactionSpool(space)
    frames = [bytes([number]) * (size - number) for number in range(2)] + [b"", b"after"]
    for number, frame in enumerate(frames):
        spool.append(number, frame[:7], frame[7:])
    assert [bytes(frame) for frame in spool.frames(without=())] == frames
    assert [bytes(frame) for frame in spool.frames(without={0, 3})] == frames[1:3]
    spool.close()


def test_the_file_is_ours_alone_has_no_name_and_goes(space: SpoolSpace, tmp_path: Path) -> None:
    before = len(_files())
    spool = TransactionSpool(space)
    spool.append(1, b"x" * _MB, b"")
    (file,) = _files()[before:] or [None]
    assert file is not None
    assert stat.S_IMODE(file.st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "spool").stat().st_mode) == 0o700
    assert not list((tmp_path / "spool").iterdir())
    spool.close()
    assert len(_files()) == before


def test_beyond_the_limit_the_transaction_is_to_be_read_whole(space: SpoolSpace) -> None:
    spools = [TransactionSpool(space) for _ in range(2)]
    for spool in spools:
        spool.append(1, bytes(3 * _MB), b"")
    with pytest.raises(NotInParts, match=r"take more than 8388608 bytes in .*capture.spool_bytes"):
        spools[0].append(1, bytes(3 * _MB), b"")
    spools[1].close()
    spools[0].append(1, bytes(1 * _MB), b"")  # with what waits in memory, there is room again
    spools[0].close()


def test_many_transactions_share_what_may_be_in_memory(space: SpoolSpace) -> None:
    spools = [TransactionSpool(space) for _ in range(640)]
    assert space.buffer_bytes * len(spools) <= 16 * _MB
    for spool in spools:
        spool.close()
    assert space.buffer_bytes == 256 * 1024


def test_a_directory_that_cant_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spool = TransactionSpool(SpoolSpace(tmp_path / "file", bytes_max=_MB))
    with pytest.raises(NotInParts, match=r"capture.spool_directory\): File exists"):
        spool.append(1, bytes(_MB), b"")


def test_a_full_disk_says_so_and_shows_no_value(space: SpoolSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = TransactionSpool(space)

    def full(_descriptor: int, _content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(transaction_spool.os, "write", full)
    with pytest.raises(NotInParts, match="No space left on device") as caught:
        spool.append(1, b"secret" * _MB, b"")
    assert "secret" not in str(caught.value)


def test_a_file_that_lost_its_end_says_so(space: SpoolSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = TransactionSpool(space)
    spool.append(1, bytes(_MB), b"")
    monkeypatch.setattr(transaction_spool.os, "pread", lambda *_: b"")
    with pytest.raises(NotInParts, match="shorter than what was written"):
        list(spool.frames(without=()))
    spool.close()
