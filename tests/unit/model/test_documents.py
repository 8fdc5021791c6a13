from __future__ import annotations

from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest

from oplogue.errors import ConfigurationError
from oplogue.model.documents import DEEPEST, is_array, is_document, snapshot


@pytest.mark.parametrize("value", [{"a": 1}, OrderedDict({"a": 1}), MappingProxyType({"a": 1})])
def test_mappings_are_documents(value: object) -> None:
    assert is_document(value)
    assert not is_array(value)


@pytest.mark.parametrize("value", [[], (), [1]])
def test_lists_and_tuples_are_arrays(value: object) -> None:
    assert is_array(value)
    assert not is_document(value)


@pytest.mark.parametrize("value", ["a", b"a", 1, None, {1}, iter([])])
def test_other_values_are_neither(value: object) -> None:
    assert not is_array(value)
    assert not is_document(value)


def nested(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in range(levels):
        document = {"a": document}
    return document


def test_a_snapshot_shares_no_container_and_keeps_every_value() -> None:
    value = object()
    inner = {"list": [value, {"deep": value}]}
    copy = snapshot({"inner": MappingProxyType(inner)}, option="filter")
    assert copy == {"inner": {"list": [value, {"deep": value}]}}
    inner["list"].clear()
    assert copy == {"inner": {"list": [value, {"deep": value}]}}


def test_a_snapshot_is_as_deep_as_the_server_allows() -> None:
    assert snapshot(nested(DEEPEST), option="filter") == nested(DEEPEST)
    with pytest.raises(ConfigurationError, match="nested deeper"):
        snapshot(nested(DEEPEST + 1), option="filter")
