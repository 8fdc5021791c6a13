"""Row 22: bad documents, one in a thousand."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from harness import CLOCK, Scene, task, until
from harness.scene import SOURCE

EACH = 1_000
NEARLY_TOO_LARGE = 16 * 1024 * 1024 - 64
WHOLE = "whole"


def _bad() -> list[dict[str, Any]]:
    year_10000 = 253_402_300_800_000
    return [
        {"_id": None, "v": 1},
        {"_id": "huge", "v": 1, "filling": "x" * (NEARLY_TOO_LARGE - 100)},
        {"_id": "keys", "v": 1, "a.b": 1, "$c": {"d.e": 2, "$f": 3}},
        {"_id": "$100", "v": "$100", "price": "$100", "root": "$$ROOT"},
        {"_id": "function", "v": {"$function": {"body": "x", "args": [], "lang": "js"}}},
        {"_id": math.nan, "v": math.nan},
        {"_id": DatetimeMS(year_10000), "v": DatetimeMS(year_10000)},
        {"_id": {"nested": {"a.b": 1}}, "v": [1, [2, {"$x": None}]]},
        {"_id": bson.Decimal128("-Infinity"), "v": bson.MinKey()},
        {"_id": "regex", "v": bson.Regex("(((")},
        {"_id": True, "v": bson.Code("while (true) {}")},
        {"_id": bson.Binary(b"\xff\xfe", 4), "v": datetime(1, 1, 1)},  # noqa: DTZ001 - the earliest of all
    ]


@pytest.mark.row("22", "bad documents, one in each 1,000")
@pytest.mark.parametrize("way", ["streamed", "reconciled"])
def test_the_bad_one_is_handled_or_parked_and_the_others_go_on(scene: Scene, full: bool, way: str) -> None:
    each = EACH if full else EACH // 5
    scene.report.row = f"22_{way}"
    tasks = [task(), task(WHOLE, watch=None)]
    if way == "streamed":
        scene.worker(*tasks, concurrency=100)
    writer = scene.writer([])
    began = CLOCK.monotonic()
    number = 0
    for bad in _bad():
        good = [{"_id": number + place, "v": 1} for place in range(each - 1)]
        number += len(good)
        half = len(good) // 2
        encoded = [RawBSONDocument(bson.encode(one)) for one in (*good[:half], bad, *good[half:])]
        scene.database.get_collection(SOURCE).insert_many(encoded)  # type: ignore[arg-type]  # raw documents
        writer.latest.update({one["_id"]: 1 for one in good})
    if way == "reconciled":
        scene.worker(*tasks, concurrency=100)
    verdict = scene.settle(writer, timeout=240)
    took = CLOCK.monotonic() - began
    assert verdict.clean, f"{verdict}\n{scene.errors()[-10:]}"
    fates = _fates(scene)
    until(lambda: len(_fates(scene)) >= len(_bad()) - 1, timeout=60, what=f"fates of all: {_fates(scene)}")
    fates = _fates(scene)
    whole = scene.settle(writer, task=WHOLE, timeout=60)
    scene.conclude(
        verdict, times=len(_bad()), recoveries=[took], fates=fates, parked=scene.count("planner.parked")
    )
    assert not whole.lost or all("huge" not in one for one in whole.lost)
    assert scene.count("planner.parked") >= 1


def _fates(scene: Scene) -> dict[str, str]:
    """What became of each bad document's record of the first task."""
    mine = {"task": "mark", "sourceDocId": {"$not": {"$type": ["int", "long"]}}}
    options: bson.CodecOptions[dict[str, Any]] = bson.CodecOptions(
        datetime_conversion=bson.DatetimeConversion.DATETIME_AUTO
    )
    raw = scene.database.get_collection(
        f"{SOURCE}_tasks",
        codec_options=options,
    )
    return {
        repr(record["sourceDocId"]): record["status"]
        for record in raw.find(mine, {"sourceDocId": 1, "status": 1})
        if record["status"] in ("completed", "failed")
    }
