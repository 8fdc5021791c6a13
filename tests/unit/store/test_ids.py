"""Ids as keys: equal where the server finds two of them equal."""

from __future__ import annotations

from bson import Code

from oplogue.store.documents import key_of


def test_code_is_an_id_of_its_own() -> None:
    assert {key_of(Code("f")): 1}[key_of(Code("f"))] == 1
    assert key_of(Code("f")) != key_of("f")
