"""Row 31: a stream that the server prunes against the documents themselves: no update that matters is dropped."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from harness import Report, Scene
from harness.oracle import Verdict
from pymongo.collection import Collection
from pymongo.errors import WriteError

from oplogue.model.definition import Namespace
from oplogue.model.paths import merge_patterns
from oplogue.store.stream import stream_pipeline

WATCHED = ("a", "b.c", "list.x", "d.0", "e.f.g")
NAMES = ("a", "b", "b.c", "b.c.deep", "b.other", "ab", "list", "list.0", "list.0.x", "list.1.y", "list.$[].x")
MORE = ("d", "d.0", "d.1", "d.0.z", "e", "e.f", "e.f.g", "e.f.h", "e.fg", "z", "z.a", "a.0.b", "x", "0")
PATHS = NAMES + MORE
DOCUMENTS = 20

Document = dict[str, Any]


@pytest.mark.row("31", "pruned stream against unpruned, random updates")
def test_no_update_that_matters_is_pruned(scene: Scene, report: Report, full: bool) -> None:
    updates = 10_000 if full else 2_500
    random_ = random.Random(report.seed)
    database = scene.database
    things = database["things"]
    # Images before and after tell what an update changed, whatever its description says.
    database.create_collection("things", changeStreamPreAndPostImages={"enabled": True})
    things.insert_many([{"_id": number} for number in range(DOCUMENTS)])
    source = Namespace(scene.database_name, "things")
    pipeline = stream_pipeline({source: merge_patterns(set(WATCHED))}, whole_cluster=False)
    since = scene.now()
    made = 0
    while made < updates:
        made += _update(things, random_)
    end = scene.now()
    every: dict[Any, bool] = {}
    options: dict[str, Any] = {"start_at_operation_time": since, "max_await_time_ms": 500}
    images: dict[str, Any] = {"full_document": "required", "full_document_before_change": "required"}
    with database.watch(**options, **images) as changes:
        while (change := changes.try_next()) is not None and change["clusterTime"] <= end:
            before, after = change.get("fullDocumentBeforeChange"), change.get("fullDocument")
            key = (change["clusterTime"], change["documentKey"]["_id"])
            if before is not None and after is not None:
                every[key] = _watched(before) != _watched(after)
    passed: set[Any] = set()
    with database.watch(pipeline, **options) as changes:
        while (change := changes.try_next()) is not None and change["clusterTime"] <= end:
            passed.add((change["clusterTime"], change["documentKey"]["_id"]))
    missed = [key for key, matters in every.items() if matters and key not in passed]
    verdict = Verdict(
        lost=tuple(map(str, missed)), stuck=(), effects_off=0, duplicates=0, runs=len(every), writes=made
    )
    mattered = sum(every.values())
    scene.conclude(verdict, times=made, mattered=mattered, passed=len(passed))
    assert mattered > made / 10
    assert len(passed) < len(every), "nothing was pruned"


def _watched(document: Mapping[str, Any]) -> list[Any]:
    return [_at(document, path.split(".")) for path in WATCHED]


def _at(value: Any, path: Sequence[str]) -> Any:
    """What an aggregation expression reads at a path, and more: positions in arrays too."""
    if not path:
        return repr(value)
    if isinstance(value, dict):
        fields = cast(Document, value)
        return _at(fields[path[0]], path[1:]) if path[0] in fields else None
    if isinstance(value, list):
        items = cast(list[Any], value)
        place = int(path[0]) if path[0].isdigit() else len(items)
        return [_at(one, path) for one in items] + [_at(one, path[1:]) for one in items[place : place + 1]]
    return None


def _value(random_: random.Random) -> Any:
    values: list[Any] = [
        *(1, 2, "text", None, [], {}, [1, 2, 3], {"c": 1}, {"c": {"deep": 2}}, {"x": 1}, {"f": {"g": 1}}),
        *([{"x": 1}, {"y": 2}], [{"x": 1, "y": 1}], {"0": 1}, [[1], [2]], random_.random()),
    ]
    return random_.choice(values)


def _update(things: Collection[Document], random_: random.Random) -> int:
    """One random update; those that the server refuses (a path through a number) don't count."""
    which = {"_id": random_.randrange(DOCUMENTS)}
    path, value = random_.choice(PATHS), _value(random_)
    plain = random_.choice([name for name in PATHS if "$" not in name])
    ways: list[Any] = [
        {"$set": {path: value}},
        {"$set": {path: value, plain: value}},
        {"$unset": {path: 1}},
        {"$unset": {path.partition(".")[0]: 1}},
        {"$rename": {plain: random_.choice([name for name in PATHS if "$" not in name])}},
        {"$push": {plain: value}},
        {"$push": {plain: {"$each": [value], "$slice": -2}}},
        {"$pop": {plain: random_.choice([1, -1])}},
        {"$pull": {plain: value if not isinstance(value, dict) else 1}},
        {"$inc": {plain: 1}},
        [{"$set": {plain: {"$literal": value}}}],
        [{"$unset": [plain]}],
        [{"$replaceWith": {"_id": "$_id", "a": "$b", "b": "$a", "list": "$list"}}],
        [{"$set": {"list": {"$slice": [{"$cond": [{"$isArray": "$list"}, "$list", [1, 2]]}, 1]}}}],
    ]
    update = random_.choice(ways)
    try:
        if random_.random() < 0.05:
            things.replace_one(which, {plain.partition(".")[0]: value})
        else:
            things.update_one(which, update)
    except WriteError:
        return 0
    return 1
