"""Stored loads: what a capture became, kept so that the next question about it need not read it again.

    ~/.cache/tracelens/<key>/        one load: events-*.parquet, one Parquet file per small table, manifest.json
                       <key>/used    whoever reads or writes the load holds a lock on this file
                       draft-*/      a load that is being written; renamed to its key when it is whole

A key is made of what the captures contain, never of where they lie; nothing of their paths, machine, environment or
users is stored. Every file is checked against the manifest before it is believed. The folder is bounded in size
(`TRACELENS_CACHE_GB`, 20 by default): the loads that were longest unused go first, those in use never.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens import __version__
from tracelens.ingest.discover import Found

FORMAT = 2
_MANIFEST = "manifest.json"
_USED = "used"
_DRAFT = ".tracelens-draft-"
_GONE = ".tracelens-gone-"
#: What a folder of DuckDB's own begins with, for what does not fit into memory.
SPILL = ".tracelens-spill-"
_DEFAULT_GB = 20.0
_SAMPLES, _SAMPLE_BYTES = 64, 4096
_READ_BYTES = 1 << 22
_OURS = (_DRAFT, _GONE, SPILL)
#: A draft without a lock file is one that was only just begun, unless it is this old.
_ABANDONED_S = 3600
#: DuckDB's folders have no lock: those that nobody wrote to for so long are left over.
_SPILL_ABANDONED_S = 48 * 3600


def root() -> Path | None:
    """The folder of stored loads; None where this user has none."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():
        return Path(named) / "tracelens"
    try:
        return Path.home() / ".cache" / "tracelens"
    except RuntimeError:
        return None


def limit_bytes() -> int:
    """How much may be stored: `TRACELENS_CACHE_GB`, which may be 0."""
    try:
        asked = float(os.environ.get("TRACELENS_CACHE_GB", ""))
    except ValueError:
        asked = _DEFAULT_GB
    return int(asked * 1e9) if 0 <= asked < 1e9 else int(_DEFAULT_GB * 1e9)


def key_of(found: Sequence[Found], choices: Sequence[object]) -> str | None:
    """What a load is stored under: equal for equal captures that are read in the same way.

    A capture is known by its size, its time of change, its first bytes and samples of its content.

    Args:
        found: the captures, in their order.
        choices: what else decides how a load turns out.

    Returns:
        None where a capture cannot be known by its content alone, or not read.
    """
    digest = hashlib.sha256(repr((FORMAT, __version__, *choices)).encode("utf-8", "surrogatepass"))
    try:
        for one in found:
            if one.kind == "report":  # nsys must export it first
                return None
            digest.update(repr((one.kind, one.shown)).encode("utf-8", "surrogatepass"))
            files = sorted(one.path.iterdir()) if one.kind == "folder" else [one.path]
            for file in files:
                if not file.is_file():
                    if one.kind == "folder":
                        continue
                    return None
                digest.update(file.name.encode("utf-8", "surrogateescape") if one.kind == "folder" else b"")
                _add_file(digest, file)
    except OSError:
        return None
    return digest.hexdigest()[:40]


def _add_file(digest: Any, file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        digest.update(repr((status.st_size, status.st_mtime_ns)).encode())
        step = max(_SAMPLE_BYTES, status.st_size // _SAMPLES)
        for offset in {*range(0, status.st_size, step), max(0, status.st_size - _SAMPLE_BYTES)}:
            digest.update(os.pread(descriptor, _SAMPLE_BYTES, offset))
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Stored:
    """One stored load, as `tracelens cache list` shows it.

    Attributes:
        key: its name.
        size_bytes: on disk.
        used_s: when it was last used, s since 1970.
        in_use: whether a process holds it now.
        about: what it was told of its content.
    """

    key: str
    size_bytes: int
    used_s: float
    in_use: bool
    about: Mapping[str, Any]


@dataclass
class Load:
    """A load that lies in a folder: a stored one, a draft of one, or one that lasts as long as its process.

    Attributes:
        folder: where its files are.
        stored: whether it is whole, and others may use it.
    """

    folder: Path
    stored: bool
    _lock: int = -1

    def __post_init__(self) -> None:
        # Also where an interrupt comes between any two lines: at the latest when the process ends.
        self._removal = weakref.finalize(self, shutil.rmtree, self.folder, True)
        if self.stored:
            self._removal.detach()

    def file(self, name: str) -> Path:
        """A file of the load."""
        return self.folder / name

    def files(self, pattern: str) -> list[Path]:
        """Its files whose names match, in order."""
        return sorted(self.folder.glob(pattern))

    def publish(self, key: str, about: Mapping[str, Any]) -> bool:
        """Makes a draft a stored load, at once and as a whole; False where that is not possible, or another was first.

        Args:
            key: from `key_of`.
            about: what else belongs into the manifest.
        """
        files = {one.name: list(_fingerprint(one)) for one in self.files("*.parquet")}
        if sum(size for size, _ in files.values()) > limit_bytes():
            return False
        try:
            _write_manifest(self.folder, {"format": FORMAT, "about": about, "files": files})
            target = self.folder.parent / key
            self.folder.rename(target)
        except OSError:
            return False
        self._removal.detach()
        self.folder, self.stored = target, True
        with contextlib.suppress(OSError):
            trim()
        return True

    def add_part(self, part: str, about: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Adds files to a stored load; whoever opens it later may ask for `part`.

        Raises:
            OSError: they cannot be written.
        """
        told = {"about": about, "files": {one.name: list(_fingerprint(one)) for one in files}}
        _write_json(self.folder / f"{part}.json", told)

    def part(self, part: str) -> Mapping[str, Any] | None:
        """What `add_part` was told, if its files are there as they were written."""
        told = _read_json(self.folder / f"{part}.json")
        if told is None or not _is_sound(self.folder, told):
            return None
        about: Mapping[str, Any] = told["about"]
        return about

    def close(self) -> None:
        """Lets the load go; one that is not stored is removed."""
        if not self.stored:
            self._removal()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def open_load(key: str) -> tuple[Load, Mapping[str, Any]] | None:
    """The stored load of that key and what its manifest tells; None where there is none, or it is not whole."""
    base = root()
    if base is None:
        return None
    folder = base / key
    lock = _lock(folder, fcntl.LOCK_SH)
    if lock is None:
        return None
    told = _read_json(folder / _MANIFEST)
    if told is None or told.get("format") != FORMAT or not _is_sound(folder, told):
        os.close(lock)
        _remove(folder)
        return None
    with contextlib.suppress(OSError):
        os.utime(folder / _USED)
    return Load(folder, True, lock), told["about"]


def draft(base: Path) -> Load:
    """A new load, in a folder of its own under `base`.

    Raises:
        OSError: nothing can be written there.
    """
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    _remove_abandoned(base)
    folder = base / f"{_DRAFT}{os.getpid()}-{secrets.token_hex(8)}"
    load = Load(folder, False)
    try:
        folder.mkdir(mode=0o700)
        load._lock = lock = os.open(folder / _USED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException:
        load.close()
        raise
    return load


def stored() -> list[Stored]:
    """Every stored load, the one that was longest unused first."""
    base = root()
    found = []
    for folder in _folders(base):
        if folder.name.startswith("."):
            continue
        try:
            used_s = (folder / _USED).stat().st_mtime
            size = sum(one.stat().st_size for one in folder.iterdir())
        except OSError:
            continue
        lock = _lock(folder, fcntl.LOCK_EX)
        if lock is not None:
            os.close(lock)
        about = (_read_json(folder / _MANIFEST) or {}).get("about") or {}
        found.append(Stored(folder.name, size, used_s, lock is None, about))
    return sorted(found, key=lambda one: (one.used_s, one.key))


def clear() -> tuple[int, int]:
    """Removes every stored load that nobody uses; (how many, how many bytes)."""
    count = size = 0
    for one in stored():
        base = root()
        if base is not None and _remove(base / one.key):
            count, size = count + 1, size + one.size_bytes
    _remove_abandoned(root())
    return count, size


def trim() -> None:
    """Removes the loads that were longest unused until the rest keeps to the limit."""
    base = root()
    everything = stored()
    total = sum(one.size_bytes for one in everything)
    for one in everything:
        if total <= limit_bytes():
            return
        if base is not None and _remove(base / one.key):
            total -= one.size_bytes


def _folders(base: Path | None) -> Iterator[Path]:
    if base is None:
        return
    try:
        listed = sorted(base.iterdir())
    except OSError:
        return
    yield from (one for one in listed if one.is_dir() and not one.is_symlink())


def _remove_abandoned(base: Path | None) -> None:
    """Removes drafts of ours whose process is gone, and what is left of removals."""
    for folder in _folders(base):
        with contextlib.suppress(OSError):  # another process may be at the same
            if not folder.name.startswith(_OURS) or folder.stat().st_uid != os.getuid():
                continue
            patience_s = _SPILL_ABANDONED_S if folder.name.startswith(SPILL) else _ABANDONED_S
            if folder.name.startswith(_GONE):
                shutil.rmtree(folder, ignore_errors=True)
            elif (folder / _USED).exists() or time.time() - folder.stat().st_mtime > patience_s:
                _remove(folder)


def _lock(folder: Path, kind: int) -> int | None:
    """A lock on a load, as an open file; None where it is gone, or held in a way that excludes this one."""
    try:
        descriptor = os.open(folder / _USED, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == (folder / _USED).stat().st_ino:  # else it was removed and made anew
            return descriptor
    except BlockingIOError:
        pass
    except OSError:
        if kind == fcntl.LOCK_SH:  # a file system without locks: read on, at the risk of a missing file
            return descriptor
    os.close(descriptor)
    return None


def _remove(folder: Path) -> bool:
    """Removes a load that nobody uses: first its name, then its files, so that nobody sees a part of it."""
    lock = _lock(folder, fcntl.LOCK_EX)
    if lock is None and (folder / _USED).exists():
        return False
    gone = folder.parent / f"{_GONE}{os.getpid()}-{secrets.token_hex(8)}"
    try:
        folder.rename(gone)
    except OSError:
        return False
    finally:
        if lock is not None:
            os.close(lock)
    shutil.rmtree(gone, ignore_errors=True)
    return True


def _fingerprint(file: Path) -> tuple[int, int]:
    """Size and checksum."""
    size = check = 0
    with file.open("rb", buffering=0) as opened:
        while data := opened.read(_READ_BYTES):
            size += len(data)
            check = zlib.crc32(data, check)
    return size, check


def _is_sound(folder: Path, told: Mapping[str, Any]) -> bool:
    """Whether every file is there, as it was written."""
    try:
        files: Mapping[str, Sequence[int]] = told["files"]
        names_are_plain = all(name == Path(name).name for name in files)
        return names_are_plain and all(_fingerprint(folder / name) == tuple(one) for name, one in files.items())
    except (OSError, KeyError, TypeError, AttributeError):
        return False


def _write_manifest(folder: Path, told: Mapping[str, Any]) -> None:
    _write_json(folder / _MANIFEST, told)


def _write_json(path: Path, told: Mapping[str, Any]) -> None:
    """Written beside, then renamed, with a checksum of itself."""
    text = json.dumps(told, sort_keys=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    beside.write_text(f"{zlib.crc32(text.encode())}\n{text}", encoding="utf-8")
    beside.replace(path)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        check, _, text = path.read_text(encoding="utf-8").partition("\n")
        if int(check) != zlib.crc32(text.encode()):
            return None
        told = json.loads(text)
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None
