"""What a document and an array are, and copies that the user's later changes don't reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from oplogue.errors import ConfigurationError

DEEPEST = 100
"""The server refuses documents that are nested deeper."""


def is_document(value: object) -> TypeGuard[Mapping[str, object]]:
    """Whether the driver would store the value as a sub-document.

    >>> is_document({"status": "paid"}), is_document(["paid"])
    (True, False)
    """
    return isinstance(value, Mapping)


def is_array(value: object) -> TypeGuard[Sequence[object]]:
    """Whether the driver would store the value as an array.

    >>> is_array(("paid", "sent")), is_array("paid")
    (True, False)
    """
    return isinstance(value, list | tuple)


def snapshot(document: Mapping[str, object], *, option: str) -> dict[str, object]:
    """A copy that shares no container with the original; values are taken as they are.

    >>> tags = ["new"]
    >>> copy = snapshot({"tags": {"$in": tags}}, option="filter")
    >>> tags.append("old")
    >>> copy
    {'tags': {'$in': ['new']}}
    """
    return {key: _copied(value, option, 1) for key, value in _checked_items(document, option)}


def _copied(value: object, option: str, depth: int) -> object:
    if depth > DEEPEST:
        raise ConfigurationError(f"nested deeper than {DEEPEST} levels", option=option, value="…")
    if is_document(value):
        return {key: _copied(member, option, depth + 1) for key, member in _checked_items(value, option)}
    if is_array(value):
        return [_copied(member, option, depth + 1) for member in value]
    return value


def _checked_items(document: Mapping[str, object], option: str) -> list[tuple[str, object]]:
    keys: list[object] = list(document)
    for key in keys:
        if not isinstance(key, str):
            raise ConfigurationError(
                f"the key {key!r} is not a string", option=option, value=document, expected="strings as keys"
            )
    return list(document.items())
