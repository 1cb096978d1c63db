"""How one kernel's name is written by different demanglers, and how to read its parts whichever wrote it.

nsys            void vllm::cross_device_reduce_1stage<__half, (int)2>(vllm::RankData *, ...)
torch profiler  void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData*, ...)
mangled         _ZN4vllm26cross_device_reduce_1stageI6__halfLi2EEEvPNS_8RankDataE...
cut off         void vllm::cross_device_reduce_1stage<__half, (int)2>(vllm::RankDa...
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_ANONYMOUS = re.compile(r"\(anonymous namespace\)|<unnamed>|\(anonymous\)|\{anonymous\}")
_INTEGER = re.compile(r"(?:^|\)|=)\s*(\d{1,6})[uUlL]*$")
_MANGLED_LENGTH = re.compile(r"\d+")
_PAIRS = {"<": ">", "(": ")", "[": "]", "{": "}"}
_CLOSERS = frozenset(_PAIRS.values())
_NOT_FUNCTIONS = ("[", "Memcpy ", "Memset ")
_QUALIFIERS = frozenset({"const", "volatile", "noexcept", "&", "&&"})


def function_name(name: str) -> str:
    """The kernel's own qualified name: template arguments, parameters and lambdas left out.

    A name that is cut off, or mangled, gives what is left of it.
    """
    if "<" not in name and "(" not in name:
        return name
    name = _ANONYMOUS.sub("", name)
    kept: list[str] = []
    open_: list[str] = []
    for piece in re.split(r"([<>()\[\]{}])", name):
        if piece in _PAIRS:
            open_.append(_PAIRS[piece])
        elif piece in _CLOSERS:
            # Inside parentheses `<` and `>` may compare: `enable_if<(N>0)&&(...)>`.
            if piece != ">" and piece in open_:
                while open_.pop() != piece:
                    pass
            elif open_ and open_[-1] == piece:
                open_.pop()
        elif not open_:
            kept.append(piece)
    return "".join(kept)


def short_name(name: str, width: int = 60) -> str:
    """The kernel's name for a sentence: `function_name` without its return type, in at most `width` characters.

    Where that is longer its middle is left out. Names of copies and graphs stay: `[CUDA memcpy Host-to-Device]`.
    """
    own = name if name.startswith(_NOT_FUNCTIONS) else function_name(name)
    if own is not name or "::" in own:
        words = [word for word in own.split() if word not in _QUALIFIERS]
        own = words[-1].lstrip("*&:").replace("::::", "::") if words else name
    if len(own) <= width:
        return own
    tail = (width - 3) * 2 // 5
    return f"{own[: width - 3 - tail]}...{own[-tail:]}"


def template_arguments(name: str, start: int) -> list[str]:
    """Template arguments of the identifier that position `start` is in or just behind; only complete ones.

    Empty where none follow. `start` is where a search for the identifier, or for a part of it, ended.
    """
    at = start
    mangled = name.startswith("_Z")
    if mangled:
        return _mangled_arguments(name, start)
    while at < len(name) and (name[at].isalnum() or name[at] == "_"):
        at += 1
    if at >= len(name) or name[at] != "<":
        return []
    arguments: list[str] = []
    closers: list[str] = []
    begin = at + 1
    for index in range(begin, min(len(name), begin + 4000)):
        letter = name[index]
        if closers:
            if letter == closers[-1]:
                closers.pop()
            elif letter in _PAIRS:
                closers.append(_PAIRS[letter])
        elif letter in ",>":
            arguments.append(name[begin:index].strip())
            if letter == ">":
                break
            begin = index + 1
        elif letter in _PAIRS:
            closers.append(_PAIRS[letter])
    return arguments


def integer(arguments: Sequence[str], position: int) -> int | None:
    """The integer that argument `position` (from 1) is, in any spelling: `8`, `8u`, `(int)8`, `(ns::Enum)1`."""
    if not 1 <= position <= len(arguments):
        return None
    match = _INTEGER.search(arguments[position - 1])
    return int(match[1]) if match else None


def _mangled_arguments(name: str, start: int) -> list[str]:
    """Arguments of an Itanium-mangled `...identifierI<arguments>E...`; literals as plain numbers, types as they are."""
    at = start
    while at < len(name) and name[at] != "I":
        if not (name[at].isalnum() or name[at] == "_"):
            return []
        at += 1
    at += 1
    arguments: list[str] = []
    while at < len(name) and name[at] != "E":
        end = _mangled_item(name, at)
        if end is None:
            break
        item = name[at:end]
        literal = re.fullmatch(r"L.*?(\d+)E", item)
        arguments.append(literal[1] if literal else item)
        at = end
    return arguments


def _mangled_item(name: str, at: int) -> int | None:
    """Where the type or literal that starts at `at` ends; null where it cannot be told."""
    while at < len(name) and name[at] in "PRKVO":
        at += 1
    if at >= len(name):
        return None
    letter = name[at]
    if letter.isdigit():
        length = _MANGLED_LENGTH.match(name, at)
        end = length.end() + int(length[0]) if length and len(length[0]) < 4 else len(name) + 1
        if end < len(name) and name[end] == "I":
            return _mangled_group(name, end + 1)
        return end if end <= len(name) else None
    if letter == "L":
        inner = _mangled_item(name, at + 1)
        end = name.find("E", inner) if inner is not None else -1
        return end + 1 if end >= 0 else None
    if letter in "NIJ":
        return _mangled_group(name, at + 1)
    if letter == "S":
        end = name.find("_", at) if at + 1 < len(name) and name[at + 1] not in "tabsiod" else at + 1
        if end >= 0 and name[at + 1 : at + 2] == "t":
            return _mangled_item(name, at + 2)
        return end + 1 if end >= 0 else None
    if letter == "D":
        return at + 2
    return at + 1


def _mangled_group(name: str, at: int) -> int | None:
    """Where the group of items that starts at `at` ends, its closing E included."""
    while at < len(name) and name[at] != "E":
        end = _mangled_item(name, at)
        if end is None:
            return None
        at = end
    return at + 1 if at < len(name) else None
