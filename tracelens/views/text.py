"""Text that came from a capture, made safe to look at.

Kernel and range names are whatever the traced program chose to call them. A name may hold terminal escapes, line
breaks, bidirectional overrides or a hundred kilobytes; none of it may move a cursor, forge a row or break a table.
"""

from __future__ import annotations

import unicodedata

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Controls, format characters (bidirectional overrides, zero-width), surrogates, private use, line and paragraph
# separators: nothing in these classes has ink, and each can make a row look like another.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def _escape(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def visible(text: str) -> str:
    """`text` with every character that has no ink written as an escape: `\\x1b`, `\\n`, `\\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escape(character) if unicodedata.category(character) in _HIDDEN else character for character in text
    )


def shorten_middle(text: str, width: int, ellipsis: str = "...") -> str:
    """`text` in at most `width` characters, its middle left out: names differ at both ends."""
    if len(text) <= width:
        return text
    if width <= len(ellipsis):
        return text[: max(width, 0)]
    kept = width - len(ellipsis)
    head = (kept * 3 + 2) // 5
    tail = kept - head
    return text[:head] + ellipsis + (text[-tail:] if tail else "")


def encodable(text: str, encoding: str | None) -> str:
    """`text` with what `encoding` cannot write as escapes, so that printing never fails on a locale."""
    return text.encode(encoding or "utf-8", errors="backslashreplace").decode(encoding or "utf-8")
