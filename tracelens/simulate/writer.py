"""Writes one SQLite file in the shape of an nsys export: tables of a version, interned strings, metadata.

`ExportWriter` knows the schema and nothing of GPUs. Rows come as columns (arrays or single values); large batches
go through Arrow, small ones through sqlite3. Tables are made when their first row arrives, as nsys does.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tracelens.errors import OutputError, UsageError
from tracelens.simulate.schema import TIME_COLUMNS, SchemaColumn, create_table, tables_of, version_named

GLOBAL_VID = 1 << 48
"""The virtual machine id that exports carry in every global id."""

BULK_ROWS = 20_000
"""From this many rows a batch goes through Arrow instead of Python."""

_MEMCPY_OPER = (
    (0, "CUDA_MEMCPY_KIND_UNKNOWN", "Unknown"),
    (1, "CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"),
    (2, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host"),
    (8, "CUDA_MEMCPY_KIND_DTOD", "Device-to-Device"),
    (9, "CUDA_MEMCPY_KIND_HTOH", "Host-to-Host"),
    (10, "CUDA_MEMCPY_KIND_PTOP", "Peer-to-Peer"),
)
_EVENT_TYPE = (
    (33, "NvtxCategory", "NvtxCategory"),
    (34, "NvtxMark", "NvtxMark"),
    (39, "NvtxThread", "NvtxThread"),
    (59, "NvtxPushPopRange", "NvtxPushPopRange"),
    (60, "NvtxStartEndRange", "NvtxStartEndRange"),
    (75, "NvtxDomainCreate", "NvtxDomainCreate"),
    (76, "NvtxDomainDestroy", "NvtxDomainDestroy"),
)

Values = npt.NDArray[Any] | list[Any] | int | str | float | bytes | None


def global_pid(pid: int) -> int:
    """The export's id of a process: virtual machine 1, this pid, no thread."""
    return GLOBAL_VID | (pid & 0xFFFFFF) << 24


def global_tid(pid: int, tid: int) -> int:
    """The export's id of a thread of a process."""
    return global_pid(pid) | (tid & 0xFFFFFF)


class ExportWriter:
    """One new export file, under a temporary name until `close`; as a context manager it cleans up after an error.

    Args:
        path: the file; it must not exist.
        nsys_version: a key of `schema.VERSIONS`.
        without: tables that are left out although rows arrive for them.
        without_columns: columns left out, per table.
        shuffle: a seed; rows of every table are then written in a random order.
        shift_ns: added to every timestamp, as `nsys export --ts-shift` does, and recorded in the metadata.
        normalize_ns: added likewise for `--ts-normalize`, the session's UTC start; 0 for none.
        string_id_start: the first StringIds id.
        lazy: False makes every table of the version, empty ones too.

    Raises:
        OutputError: the file exists, or its folder does not.
        UsageError: the version is unknown.
    """

    def __init__(
        self,
        path: Path,
        nsys_version: str = "2026.2.1",
        *,
        without: Collection[str] = (),
        without_columns: Mapping[str, Collection[str]] | None = None,
        shuffle: int | None = None,
        shift_ns: int = 0,
        normalize_ns: int = 0,
        string_id_start: int = 1,
        lazy: bool = True,
    ) -> None:
        self.version = version_named(nsys_version)
        if path.exists():
            raise OutputError(f"{path} exists", "choose another folder: the simulator never overwrites")
        if not path.parent.is_dir():
            raise OutputError(f"{path.parent} is not a folder")
        self.path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._partial.unlink(missing_ok=True)
        self.shift_ns = shift_ns
        self.normalize_ns = normalize_ns
        self._without = frozenset(without)
        self._without_columns = {table: frozenset(columns) for table, columns in (without_columns or {}).items()}
        self._tables = tables_of(self.version)
        self._created: dict[str, tuple[SchemaColumn, ...]] = {}
        self._strings: dict[str, int] = {}
        self._next_string = string_id_start
        self._rng = None if shuffle is None else np.random.default_rng(shuffle)
        self._held: dict[str, list[dict[str, Any]]] = {}
        try:
            self._con = sqlite3.connect(self._partial, isolation_level=None)
            self._con.execute("PRAGMA journal_mode=OFF")
            self._con.execute("PRAGMA synchronous=OFF")
            self._create("StringIds")
        except sqlite3.Error as error:
            raise OutputError(f"{path} cannot be written: {error}", "choose a folder that can be written") from error
        if not lazy:
            for table in self._tables:
                self._create(table)

    def has(self, table: str, column: str | None = None) -> bool:
        """Whether this file's version, less what was left out, has the table (and the column)."""
        columns = self._columns(table)
        return bool(columns) and (column is None or any(column == known.name for known in columns))

    def string(self, text: str) -> int:
        """The StringIds id of `text`, made on first use."""
        known = self._strings.get(text)
        if known is None:
            known = self._strings[text] = self._next_string
            self._next_string += 1
        return known

    def strings(self, texts: list[str]) -> npt.NDArray[np.int64]:
        """The StringIds ids of `texts`."""
        return np.array([self.string(text) for text in texts], dtype=np.int64)

    def insert(self, table: str, rows: int, columns: Mapping[str, Values], *, shifted: bool = True) -> None:
        """Append `rows` rows; columns that the version lacks are dropped, missing ones are NULL or 0.

        A single value stands for every row. Time columns are shifted here, once, unless `shifted` is False.
        """
        if rows == 0 or not self.has(table):
            return
        known = self._create(table)
        shift = self.shift_ns + self.normalize_ns
        batch: dict[str, Any] = {}
        for column in known:
            value = columns.get(column.name)
            if value is None:
                if not column.not_null:
                    continue
                value = "" if column.type == "TEXT" else 0
            if shifted and shift and column.name in TIME_COLUMNS:
                value = _shifted(value, shift)
            batch[column.name] = value
        if self._rng is None:
            self._flush(table, rows, batch)
        else:
            self._held.setdefault(table, []).append({"": rows, **batch})

    def insert_rows(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Append rows given as dicts; keys that the table lacks are dropped."""
        if rows:
            names = {name for row in rows for name in row}
            self.insert(table, len(rows), {name: [row.get(name) for row in rows] for name in names})

    def metadata(
        self,
        utc_ns: int,
        *,
        host: str = "node0",
        export: Mapping[str, str] | None = None,
        capture: list[tuple[str, str]] | None = None,
    ) -> None:
        """Write the export's and the capture's metadata, in the tables of this version."""
        if not self.version.schema:
            return
        date = datetime.fromtimestamp(utc_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        major, minor, micro = self.version.schema.split(".")
        rows = {
            "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
            "EXPORT_PRODUCT_VERSION": self.version.product,
            "EXPORT_SCHEMA_VERSION": self.version.schema,
            "EXPORT_SCHEMA_VERSION_MAJOR": major,
            "EXPORT_SCHEMA_VERSION_MINOR": minor,
            "EXPORT_SCHEMA_VERSION_MICRO": micro,
            "EXPORT_PLATFORM": "linux-desktop",
            "EXPORT_ARCH": "x64",
            "EXPORT_HOST": host,
            "EXPORT_TIME_UTC": date,
        }
        if self.version.generation >= 2 or self.shift_ns or self.normalize_ns:
            rows |= {
                "EXPORT_PARAM_EXPORT_TYPE": "SQLite",
                "EXPORT_PARAM_INPUT_FILE": f"{self.path.stem}.nsys-rep",
                "EXPORT_PARAM_LAZY": "true",
                "EXPORT_PARAM_TIME_NORMALIZE": "true" if self.normalize_ns else "false",
                "EXPORT_PARAM_TIME_SHIFT": str(self.shift_ns),
                "EXPORT_CONFIG_TIME_SHIFT": str(self.shift_ns + self.normalize_ns),
            }
        if self.version.generation >= 5:
            rows |= {"EXPORT_PARAM_INCLUDE_JSON": "true", "EXPORT_PARAM_INCLUDE_BLOBS": "true"}
        rows |= dict(export or {})
        table = "EXPORT_META_DATA" if self.version.generation == 1 else "META_DATA_EXPORT"
        self.insert(table, len(rows), {"name": list(rows), "value": list(rows.values())})
        pairs = capture or []
        self.insert(
            "META_DATA_CAPTURE", len(pairs), {"name": [name for name, _ in pairs], "value": [v for _, v in pairs]}
        )
        for table, labels in (("ENUM_CUDA_MEMCPY_OPER", _MEMCPY_OPER), ("ENUM_NSYS_EVENT_TYPE", _EVENT_TYPE)):
            ids, names, texts = (list(part) for part in zip(*labels, strict=True))
            self.insert(table, len(ids), {"id": ids, "name": names, "label": texts})

    def session(self, utc_ns: int, system_clock_ns: int | None, duration_ns: int, host: str, driver: str) -> None:
        """Write when the session began, how long it was, on which machine."""
        text = datetime.fromtimestamp(utc_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        self.insert(
            "TARGET_INFO_SESSION_START_TIME",
            1,
            {"utcEpochNs": utc_ns, "utcTime": text, "localTime": text, "systemClockNs": system_clock_ns},
        )
        origin = system_clock_ns if system_clock_ns is not None and self.version.generation >= 5 else 18_704_565_719
        origin += self.normalize_ns
        self.insert(
            "ANALYSIS_DETAILS",
            1,
            {"globalVid": GLOBAL_VID, "duration": duration_ns, "startTime": origin, "stopTime": origin + duration_ns},
        )
        self.insert(
            "TARGET_INFO_SYSTEM_ENV",
            3,
            {
                "globalVid": GLOBAL_VID,
                "devStateName": "Local (CLI)",
                "name": ["NvDriverVersion", "CudaDriverVersion", "Hostname"],
                "nameEnum": [205, 611, 619],
                "value": [driver, "13000", host],
            },
        )

    def close(self) -> Path:
        """Write what is held back and the strings, and close the file."""
        for table, batches in self._held.items():
            self._flush_shuffled(table, batches)
        self._held = {}
        if "StringIds" not in self._without and self._strings:
            rows = [(number, text) for text, number in self._strings.items()]
            if self._rng is not None:
                rows = [rows[i] for i in self._rng.permutation(len(rows))]
            self._con.execute("BEGIN")
            self._con.executemany("INSERT INTO StringIds VALUES (?, ?)", rows)
            self._con.execute("COMMIT")
        self._con.close()
        if self.path.exists():
            self.abandon()
            raise OutputError(
                f"{self.path} appeared meanwhile", "choose another folder: the simulator never overwrites"
            )
        self._partial.rename(self.path)
        return self.path

    def abandon(self) -> None:
        """Give the file up: nothing of it stays."""
        self._con.close()
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None:
            self.close()
            return
        self.abandon()
        if isinstance(error, sqlite3.OperationalError):
            raise OutputError(f"{self.path} cannot be written: {error}", "is there room on the disk?") from error

    def _columns(self, table: str) -> tuple[SchemaColumn, ...]:
        if table in self._without:
            return ()
        dropped = self._without_columns.get(table, frozenset())
        return tuple(column for column in self._tables.get(table, ()) if column.name not in dropped)

    def _create(self, table: str) -> tuple[SchemaColumn, ...]:
        if table not in self._created:
            columns = self._columns(table)
            self._created[table] = columns
            if columns:
                self._con.execute(create_table(table, columns))
        return self._created[table]

    def _flush(self, table: str, rows: int, batch: dict[str, Any]) -> None:
        if rows >= BULK_ROWS and self._bulk(table, rows, batch):
            return
        names = ", ".join(f'"{name}"' for name in batch)
        marks = ", ".join("?" * len(batch))
        self._con.execute("BEGIN")
        self._con.executemany(
            f'INSERT INTO "{table}" ({names}) VALUES ({marks})',  # noqa: S608 - names come from the schema
            zip(*(_listed(value, rows) for value in batch.values()), strict=True),
        )
        self._con.execute("COMMIT")

    def _bulk(self, table: str, rows: int, batch: dict[str, Any]) -> bool:
        arrays = {name: value for name, value in batch.items() if not (value is None or isinstance(value, bytes))}
        if len(arrays) < len(batch) or any(_has_bytes(value) for value in arrays.values()):
            return False
        import adbc_driver_sqlite.dbapi
        import pyarrow as pa

        data = pa.table({name: _arrow(value, rows) for name, value in arrays.items()})
        with adbc_driver_sqlite.dbapi.connect(str(self._partial)) as con, con.cursor() as cursor:
            cursor.adbc_ingest(table, data, mode="append")
            con.commit()
        return True

    def _flush_shuffled(self, table: str, batches: list[dict[str, Any]]) -> None:
        if self._rng is None:
            return
        total = sum(batch[""] for batch in batches)
        order = self._rng.permutation(total)
        merged: dict[str, Any] = {}
        for name in dict.fromkeys(name for batch in batches for name in batch if name):
            values = [item for batch in batches for item in _listed(batch.get(name), batch[""])]
            merged[name] = [values[i] for i in order]
        self._flush(table, total, merged)


def _shifted(value: Any, shift: int) -> Any:
    if isinstance(value, np.ndarray):
        return value + shift
    if isinstance(value, list):
        return [None if item is None else item + shift for item in value]
    return value + shift


def _listed(value: Any, rows: int) -> list[Any]:
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            return [None if item is np.ma.masked else item for item in value.tolist()]
        return list(value.tolist())
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return [_plain(value)] * rows


def _plain(value: Any) -> Any:
    # sqlite3 would store a numpy scalar as a blob
    return value.item() if isinstance(value, np.generic) else value


def _has_bytes(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, bytes) for item in value)


def _arrow(value: Any, rows: int) -> Any:
    import pyarrow as pa

    if isinstance(value, np.ma.MaskedArray):
        return pa.array(value.filled(0), mask=np.ma.getmaskarray(value))
    if isinstance(value, (np.ndarray, list)):
        return pa.array(value)
    return pa.repeat(pa.scalar(value), rows)


def refuse_existing(paths: list[Path]) -> None:
    """Check that none of `paths` exists, before anything is written.

    Raises:
        OutputError: one does.
        UsageError: two are the same.
    """
    if len(set(paths)) < len(paths):
        raise UsageError("two exports would have one name")
    for path in paths:
        if path.exists():
            raise OutputError(f"{path} exists", "choose another folder: the simulator never overwrites")
