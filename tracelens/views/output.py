"""Files written whole or not at all.

Every file the program writes goes through here: a temporary file beside the target, flushed to disk, then renamed.
An interrupt, a full disk or an exception leaves the old file as it was and nothing beside it. The names are the
user's own; no part of one ever comes from a capture.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from tracelens.errors import OutputError

Writer = Callable[[BinaryIO], None]


def check_target(path: Path, *, force: bool) -> None:
    """Refuse a target that cannot or must not be written, before any work is done for it.

    Raises:
        OutputError: the folder does not exist or cannot be written, the path is a folder, or a file is already
            there and `force` is not set.
    """
    parent = path.parent
    if not parent.is_dir():
        raise OutputError(f"cannot write {path}: there is no folder {parent}", "make the folder first")
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder", "name a file in it")
    if _is_device(path):
        return
    if os.path.lexists(path) and not force:
        raise OutputError(f"{path} exists", "use --force to replace it, or another name")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write {path}: no permission to write in {parent}")


def write_atomically(path: Path | str, writer: Writer, *, force: bool = False) -> None:
    """Write one file through `writer(binary stream)`; on any failure the target is as it was.

    Args:
        path: the target as the user typed it. A symbolic link is replaced, never followed.
        writer: called once with a writable binary stream.
        force: replace what is there.

    Raises:
        OutputError: see `check_target`; also a full disk or any other operating system error.
    """
    write_files({Path(path): writer}, force=force)


def write_files(writers: Mapping[Path, Writer], *, force: bool = False) -> None:
    """Write several files together: all are complete on disk before the first one takes its name.

    Raises:
        OutputError: as `write_atomically`; then no target has changed.
    """
    for path in writers:
        check_target(path, force=force)
    staged: list[tuple[Path, Path]] = []
    try:
        for path, writer in writers.items():
            try:
                if _is_device(path):
                    with path.open("wb") as stream:
                        writer(stream)
                    continue
                staged.append((_stage(path), path))
                with staged[-1][0].open("wb") as stream:
                    writer(stream)
                    stream.flush()
                    os.fsync(stream.fileno())
            except OSError as error:
                raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
        while staged:
            temporary, path = staged[0]
            _publish(temporary, path, force=force)
            staged.pop(0)
    finally:
        for temporary, _ in staged:
            with contextlib.suppress(OSError):
                temporary.unlink()


@contextlib.contextmanager
def staged(path: Path | str, *, force: bool = False) -> Iterator[Path]:
    """For writers that open files themselves: yields a name beside the target where nothing is yet; what is there
    when the block ends takes the target's name, and if the block fails it is removed.

    Raises:
        OutputError: as `write_atomically`.
    """
    target = Path(path)
    check_target(target, force=force)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".tracelens-") as folder:
        temporary = Path(folder) / "part"
        try:
            yield temporary
            temporary.chmod(_mode(target))
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
        _publish(temporary, target, force=force)


def _is_device(path: Path) -> bool:
    """Whether `path` is a device or a pipe (`/dev/stdout`, a FIFO): written to, never replaced."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _stage(path: Path) -> Path:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tracelens-", suffix=".part")
    try:
        os.fchmod(handle, _mode(path))
    finally:
        os.close(handle)
    return Path(name)


def _mode(path: Path) -> int:
    """The permission bits of the file to be replaced, else what the user's umask gives a new file."""
    try:
        return stat.S_IMODE(path.lstat().st_mode) if not path.is_symlink() else 0o644
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def _publish(temporary: Path, path: Path, *, force: bool) -> None:
    try:
        if force:
            temporary.replace(path)
            return
        # A link fails if the name appeared meanwhile, where a rename would silently replace it.
        try:
            os.link(temporary, path)
        except FileExistsError as error:
            raise OutputError(f"{path} exists", "use --force to replace it, or another name") from error
        except OSError:
            temporary.replace(path)
            return
        temporary.unlink()
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
