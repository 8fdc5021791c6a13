"""What is said of the driver's errors."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure, ServerSelectionTimeoutError

from oplogue.store.faults import describe


def test_an_error_is_one_line_with_its_code() -> None:
    assert describe(OperationFailure("no\nreally", code=13)) == "OperationFailure 13: no"


def test_a_server_that_is_away_is_said_once() -> None:
    nobody = MongoClient[dict[str, Any]]("mongodb://127.0.0.1:9/", serverSelectionTimeoutMS=1)
    with nobody, pytest.raises(ServerSelectionTimeoutError) as caught:
        nobody.admin.command("ping")
    text = describe(caught.value)
    assert text.startswith("ServerSelectionTimeoutError: ")
    assert "Topology" not in text
    assert "configured timeouts" not in text
    assert text.count("127.0.0.1:9") == str(caught.value).partition(", Timeout:")[0].count("127.0.0.1:9")
