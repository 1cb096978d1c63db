"""How much memory may be used, and whether it was too little."""

from __future__ import annotations

import ctypes
import os
import re

_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", re.IGNORECASE)
_MOST_BYTES = 4 * 10**9
_UNKNOWN_BYTES = 8 * 10**9
_M_ARENA_MAX = -8
"""The number of this choice in glibc's malloc.h."""


def default_bytes() -> int:
    """Half the machine's memory, at most 4 GB."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        whole = _UNKNOWN_BYTES
    return min(whole // 2, _MOST_BYTES)


def return_freed() -> None:
    """Gives the system back what was freed: glibc keeps it for the next that asks, be it needed or not."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another C library
        return
    trim(0)


def share_one_heap() -> None:
    """Lets all threads of this process take memory from one heap.

    glibc gives threads heaps of their own, and what is freed in one is of no use to another: a report then takes a
    tenth more.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    except (OSError, AttributeError):  # another C library
        return


def ran_out(error: BaseException) -> bool:
    """Whether an error says that there was not enough memory; DuckDB's own is known by name, without importing it."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryException"


def bytes_of(text: str) -> int:
    """`800MB`, `4G` or `1000000` as bytes; units are powers of 1000.

    Raises:
        ValueError: it is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size of memory, like 4GB or 800MB")
    return int(float(match.group(1)) * _SIZES[match.group(2).upper()])
