"""What announcements make of a stored definition: alike whoever announces, and in whatever order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.rig import BOUND, Document, Rig

from oplogue.model.definition import TaskDefinition
from oplogue.model.policies import Evolution
from oplogue.store.announcements import revision, trigger_hash
from oplogue.store.definitions import Definitions, StoredTask


@pytest.fixture
def definitions(rig: Rig) -> Definitions:
    """The definitions of the test's database."""
    return Definitions(rig.client, rig.globals, bound=BOUND)


def version(number: int, policy: Any = "none", **more: Any) -> Evolution:
    """A handler's version, and what its rise asks for."""
    return Evolution(handler_version=number, on_handler_version_change=policy, **more)


async def announce(
    definitions: Definitions, definition: TaskDefinition, *carried: TaskDefinition
) -> StoredTask:
    """The definition in force after an announcement, while instances live that carry others."""
    await definitions.announce([definition], [revision(other) for other in carried])
    (stored,) = await definitions.all()
    return stored


async def document(rig: Rig) -> Document:
    """The stored definition."""
    found = await rig.db[rig.globals.collection].find_one({"_id": "task:sync"})
    assert found is not None
    return found


async def asked(rig: Rig) -> list[tuple[int, str]]:
    """The resets that are to be done."""
    return [(entry["version"], entry["mode"]) for entry in (await document(rig))["reprocess"]]


# -- one revision stays in force


async def test_of_two_revisions_side_by_side_the_newer_stays_however_often_both_are_announced(
    rig: Rig, definitions: Definitions
) -> None:
    old = rig.task(debounce="1s").definition
    new = rig.task(debounce="5s", filter={"status": "open"}).definition
    await announce(definitions, old)
    await announce(definitions, new, old)
    in_force = await document(rig)
    for _ in range(3):
        assert not await definitions.announce([old], [revision(new)])
        assert not await definitions.announce([new], [revision(old)])
    assert await document(rig) == in_force
    assert in_force["hash"] == trigger_hash(new)


async def test_an_option_alone_makes_a_revision_that_stays(rig: Rig, definitions: Definitions) -> None:
    old, new = rig.task(max_wait="1m").definition, rig.task(max_wait="2m").definition
    await announce(definitions, old)
    await announce(definitions, new, old)
    assert not await definitions.announce([old], [revision(new)])
    assert (await document(rig))["maxWait"] == "2m"


async def test_a_replaced_revision_comes_back_when_nobody_carries_its_replacement(
    rig: Rig, definitions: Definitions
) -> None:
    old, new = rig.task(filter={"a": 1}).definition, rig.task(filter={"a": 2}).definition
    await announce(definitions, old)
    await announce(definitions, new, old)
    assert (await announce(definitions, old, old)).planned.hash == trigger_hash(old)
    # And the one that was rolled back does not push it out while it is carried.
    assert (await announce(definitions, new, old)).planned.hash == trigger_hash(old)


async def test_a_lower_version_comes_into_force_only_when_nobody_carries_the_higher(
    rig: Rig, definitions: Definitions
) -> None:
    (new,) = tasks(rig, version(2))
    old = rig.task(filter={"a": 1}, evolution=version(1)).definition
    await announce(definitions, new)
    assert (await announce(definitions, old, new)).planned.hash == trigger_hash(new)
    assert (await announce(definitions, old)).planned.hash == trigger_hash(old)
    # After that rollback its own code may be edited as before.
    edited = rig.task(filter={"a": 2}, evolution=version(1)).definition
    assert (await announce(definitions, edited, old)).planned.hash == trigger_hash(edited)


# -- triggers


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": {"$gt": 1, "$lt": 5}}, {"a": {"$lt": 5, "$gt": 1}}),
        ({"$or": [{"a": 1, "b": 2}]}, {"$or": [{"b": 2, "a": 1}]}),
        ({"a": {"$elemMatch": {"x": 1, "y": 2}}}, {"a": {"$elemMatch": {"y": 2, "x": 1}}}),
        ({"a": {"$not": {"$gt": 1, "$lt": 2}}}, {"a": {"$not": {"$lt": 2, "$gt": 1}}}),
    ],
)
async def test_the_order_of_conditions_is_no_change(
    rig: Rig, definitions: Definitions, one: Document, other: Document
) -> None:
    await announce(definitions, rig.task(filter=one).definition)
    before = await document(rig)
    assert not await definitions.announce([rig.task(filter=other).definition], [])
    assert await document(rig) == before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": 1}, {"a": True}),
        ({"a": {"$eq": {"x": 1, "y": 2}}}, {"a": {"$eq": {"y": 2, "x": 1}}}),
        ({"$expr": {"$eq": ["$a", {"x": 1, "y": 2}]}}, {"$expr": {"$eq": ["$a", {"y": 2, "x": 1}]}}),
    ],
)
async def test_the_order_within_values_is_a_change_as_it_is_to_the_server(
    rig: Rig, definitions: Definitions, one: Document, other: Document
) -> None:
    await announce(definitions, rig.task(filter=one).definition)
    await definitions.reconciled(await definitions.all())
    assert not (await announce(definitions, rig.task(filter=other).definition)).reconciled


async def test_watched_values_keep_the_order_in_which_records_have_them(
    rig: Rig, definitions: Definitions
) -> None:
    await announce(definitions, rig.task(watch=["b", "a", "c.y", "c.x"]).definition)
    stored = await announce(definitions, rig.task(watch=["a", "c.x", "b", "c.y"]).definition)
    assert repr(stored.planned.definition.projection.expression) == repr(
        {"b": "$b", "a": "$a", "c": {"y": "$c.y", "x": "$c.x"}}
    )


async def test_a_changed_filter_keeps_the_order_of_watched_values(rig: Rig, definitions: Definitions) -> None:
    await announce(definitions, rig.task(watch=["b", "a"], filter={"a": 1}).definition)
    stored = await announce(definitions, rig.task(watch=["a", "b"], filter={"a": 2}).definition)
    assert list(stored.planned.definition.filter.raw.items()) == [("a", 2)]
    assert repr(stored.planned.definition.projection.expression) == "{'b': '$b', 'a': '$a'}"


async def test_a_changed_trigger_and_not_reconciled_are_one_write(rig: Rig, definitions: Definitions) -> None:
    await announce(definitions, rig.task(filter={"a": 1}).definition)
    await definitions.reconciled(await definitions.all())
    since = await rig.event()
    stored = await announce(definitions, rig.task(filter={"a": 2}).definition)
    assert not stored.reconciled
    name = f"{rig.db.name}.{rig.globals.collection}"
    entries = await rig.client.local["oplog.rs"].find({"ts": {"$gt": since}, "ns": name}).to_list()
    (entry,) = entries
    assert {"hash", "reconciled", "trigger"} <= changed_fields(entry)


def changed_fields(entry: Document) -> set[str]:
    """The fields that an update in the oplog changes."""
    diff: Document = entry["o"].get("diff", {})
    return {name for part in diff.values() for name in part} or set(entry["o"])


@pytest.mark.parametrize("reconciled", [True, False])
async def test_where_no_filling_in_is_wanted_what_was_still_to_be_reconciled_still_is(
    rig: Rig, definitions: Definitions, reconciled: bool
) -> None:
    await announce(definitions, rig.task(filter={"a": 1}).definition)
    if reconciled:
        await definitions.reconciled(await definitions.all())
    quiet = Evolution(reconcile_on_trigger_change=False)
    stored = await announce(definitions, rig.task(filter={"a": 2}, evolution=quiet).definition)
    assert stored.reconciled is reconciled


# -- versions


def tasks(rig: Rig, *evolutions: Evolution) -> Sequence[TaskDefinition]:
    """The same task with handlers of these versions."""
    return [rig.task(evolution=evolution).definition for evolution in evolutions]


async def test_a_first_definition_has_nothing_to_reprocess(rig: Rig, definitions: Definitions) -> None:
    await announce(definitions, *tasks(rig, version(7, "reprocess_all")))
    assert await asked(rig) == []


async def test_a_rise_asks_once_for_what_its_policy_says(rig: Rig, definitions: Definitions) -> None:
    first, second, third = tasks(rig, version(1), version(2, "reprocess_failed"), version(3))
    await announce(definitions, first)
    await announce(definitions, second, first)
    assert await asked(rig) == [(2, "reprocess_failed")]
    before = await document(rig)
    await announce(definitions, second, first)
    assert await document(rig) == before
    # The next version wants nothing: what is under way goes on, and the versions below are still too old.
    await announce(definitions, third, second)
    assert await asked(rig) == [(2, "reprocess_failed")]
    standing = (await definitions.standings(["sync"]))["sync"]
    assert (standing.version, standing.requires) == (3, 2)


@pytest.mark.parametrize(
    ("earlier", "later", "left"),
    [
        ("reprocess_all", "reprocess_failed", [(2, "reprocess_all"), (3, "reprocess_failed")]),
        ("reprocess_all", "reprocess_all", [(3, "reprocess_all")]),
        ("reprocess_failed", "reprocess_failed", [(3, "reprocess_failed")]),
        ("reprocess_failed", "reprocess_all", [(3, "reprocess_all")]),
    ],
)
async def test_a_later_rise_loses_nothing_of_an_earlier_one_that_is_under_way(
    rig: Rig, definitions: Definitions, earlier: str, later: str, left: list[tuple[int, str]]
) -> None:
    for definition in tasks(rig, version(1), version(2, earlier), version(3, later)):
        await announce(definitions, definition)
    assert await asked(rig) == left


async def test_a_lower_version_changes_nothing_and_its_return_asks_for_nothing(
    rig: Rig, definitions: Definitions
) -> None:
    first, second = tasks(rig, version(1, "reprocess_all"), version(2, "reprocess_all"))
    await announce(definitions, second)
    await announce(definitions, first)
    await announce(definitions, second)
    assert await asked(rig) == []
    assert (await definitions.standings(["sync"]))["sync"].version == 2


@pytest.mark.parametrize("edited", ["two", None, -1, 2.5, 2**40, {}])
async def test_a_version_that_was_edited_into_nonsense_is_mended_and_reprocesses_nothing(
    rig: Rig, definitions: Definitions, edited: Any
) -> None:
    first, second = tasks(rig, version(1), version(2, "reprocess_all"))
    await announce(definitions, first)
    await rig.db[rig.globals.collection].update_one(
        {"_id": "task:sync"}, {"$set": {"handlerVersion": edited}}
    )
    stored = await announce(definitions, second)
    assert stored.version == 2
    assert await asked(rig) == []


# -- removed tasks


async def test_a_removed_task_is_noted_once_until_it_is_announced_again(
    rig: Rig, definitions: Definitions
) -> None:
    definition = rig.task().definition
    await announce(definitions, definition)
    assert [await definitions.note_removed("sync") for _ in range(2)] == [True, False]
    assert (await announce(definitions, definition)).removed_at is None
    assert await definitions.note_removed("sync")
