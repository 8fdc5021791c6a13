"""Definitions in force: what a deployment changes, and what an instance with older code leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.rig import BOUND, Document, Rig

from oplogue import CleanupPolicy, CronRetry, Evolution, Fixed, Linear, Series
from oplogue.model.definition import TaskDefinition
from oplogue.model.retry import RetryPolicy
from oplogue.store.announcements import revision, trigger_hash
from oplogue.store.definitions import Definitions, StoredTask

OLD: Document = {"status": "paid"}
NEW: Document = {"status": "sent"}


@pytest.fixture
def definitions(rig: Rig) -> Definitions:
    return Definitions(rig.client, rig.globals, bound=BOUND)


async def only(definitions: Definitions) -> StoredTask:
    (stored,) = await definitions.all()
    return stored


def define(rig: Rig, filter_: Document, **evolution: object) -> TaskDefinition:
    definition = rig.task(filter=filter_).definition
    return replace(definition, evolution=Evolution(**evolution))  # type: ignore[arg-type]  # tests' own words


@pytest.mark.parametrize(
    "policy",
    [Fixed("5s"), Linear("1s", max_duration="1h"), Series(["1s", "5m"]), CronRetry("0 3 * * *", tz="UTC")],
    ids=str,
)
async def test_what_is_announced_is_what_any_leader_reads(
    rig: Rig, definitions: Definitions, policy: RetryPolicy
) -> None:
    announced = replace(
        rig.task(watch={"lines.price": 1, "large": {"$gt": ["$total", 5]}}).definition,
        retry_policy=policy,
        cleanup_policy=CleanupPolicy("never", "3d"),
        evolution=Evolution(3, "reprocess_failed", reconcile_on_trigger_change=False),
        execution_history_limit=7,
        priority=2,
    )
    assert await definitions.announce([announced], ())
    stored = await only(definitions)
    assert stored.planned.definition == announced
    assert stored.planned.hash == trigger_hash(announced)
    assert not stored.reconciled
    assert not await definitions.announce([announced], ())


async def test_a_changed_trigger_is_to_be_reconciled(rig: Rig, definitions: Definitions) -> None:
    await definitions.announce([define(rig, OLD)], ())
    await definitions.reconciled([await only(definitions)])
    assert (await only(definitions)).reconciled
    await definitions.announce([define(rig, NEW)], ())
    assert not (await only(definitions)).reconciled


async def test_a_changed_trigger_is_not_where_that_is_not_wanted(rig: Rig, definitions: Definitions) -> None:
    await definitions.announce([define(rig, OLD)], ())
    await definitions.reconciled([await only(definitions)])
    before = (await only(definitions)).defined_at
    await definitions.announce([define(rig, NEW, reconcile_on_trigger_change=False)], ())
    after = await only(definitions)
    assert after.reconciled
    assert before is not None
    assert after.defined_at is not None
    assert after.defined_at > before


async def test_an_instance_with_older_code_that_restarts_leaves_the_newer_definition_in_force(
    rig: Rig, definitions: Definitions
) -> None:
    old, new = define(rig, OLD), define(rig, NEW)
    for definition in (old, new):
        await definitions.announce([definition], ())
    assert not await definitions.announce([old], [revision(new)])
    assert (await only(definitions)).planned.hash == trigger_hash(new)


async def test_a_definition_comes_back_when_nobody_carries_its_replacement_any_more(
    rig: Rig, definitions: Definitions
) -> None:
    old, new = define(rig, OLD), define(rig, NEW)
    for definition in (old, new):
        await definitions.announce([definition], ())
    assert await definitions.announce([old], [revision(old)])
    assert (await only(definitions)).planned.hash == trigger_hash(old)
    # And its replacement may be deployed once more.
    assert await definitions.announce([new], ())
    assert (await only(definitions)).planned.hash == trigger_hash(new)


async def test_a_lower_version_of_a_handler_changes_nothing(rig: Rig, definitions: Definitions) -> None:
    await definitions.announce([define(rig, OLD, handler_version=3)], ())
    await definitions.announce([define(rig, OLD, handler_version=2)], ())
    assert (await only(definitions)).version == 3


async def test_a_definition_that_was_edited_into_nonsense_hides_no_other(
    rig: Rig, definitions: Definitions
) -> None:
    await definitions.announce([define(rig, OLD), rig.task("other").definition], ())
    await rig.db[rig.globals.collection].update_one({"_id": "task:sync"}, {"$set": {"trigger": "{"}})
    assert (await only(definitions)).name == "other"
