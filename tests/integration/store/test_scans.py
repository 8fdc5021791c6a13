"""Checkpoints of reconciliations: for whom a scan goes on where it broke off, and who may move it."""

from __future__ import annotations

import pytest
from tests.support.rig import BOUND, Rig

from oplogue.store.definitions import Definitions, StoredTask
from oplogue.store.scans import Checkpoint, Scans


@pytest.fixture
def scans(rig: Rig) -> Scans:
    return Scans(rig.client, rig.globals, bound=BOUND)


@pytest.fixture
def definitions(rig: Rig) -> Definitions:
    return Definitions(rig.client, rig.globals, bound=BOUND)


async def announced(
    rig: Rig, definitions: Definitions, filter_: dict[str, object] | None = None
) -> StoredTask:
    """The task as it is stored after an instance announced it."""
    await definitions.announce([rig.task(filter=filter_).definition], ())
    (stored,) = await definitions.all()
    return stored


async def test_a_scan_goes_on_for_the_same_triggers(rig: Rig, scans: Scans, definitions: Definitions) -> None:
    task = await announced(rig, definitions)
    await scans.save(rig.source, [task], Checkpoint(7, 1000), 1)
    assert await scans.checkpoint(rig.source, [await announced(rig, definitions)]) == Checkpoint(7, 1000)


async def test_a_scan_starts_again_where_the_triggers_are_others(
    rig: Rig, scans: Scans, definitions: Definitions
) -> None:
    task = await announced(rig, definitions)
    await scans.save(rig.source, [task], Checkpoint(7, 1000), 1)
    assert await scans.checkpoint(rig.source, [await announced(rig, definitions, {"a": 1})]) is None


async def test_a_trigger_that_came_back_is_scanned_from_the_start(
    rig: Rig, scans: Scans, definitions: Definitions
) -> None:
    task = await announced(rig, definitions)
    await scans.save(rig.source, [task], Checkpoint(7, 1000), 1)
    await announced(rig, definitions, {"a": 1})
    again = await announced(rig, definitions)
    assert again.planned.hash == task.planned.hash
    assert await scans.checkpoint(rig.source, [again]) is None


async def test_a_scan_that_is_asked_for_anew_starts_again(
    rig: Rig, scans: Scans, definitions: Definitions
) -> None:
    task = await announced(rig, definitions)
    await scans.save(rig.source, [task], Checkpoint(7, 1000), 1)
    await definitions.to_be_reconciled()
    (again,) = await definitions.all()
    assert await scans.checkpoint(rig.source, [again]) is None


async def test_a_scan_that_ends_answers_no_request_that_came_meanwhile(
    rig: Rig, definitions: Definitions
) -> None:
    task = await announced(rig, definitions)
    await definitions.to_be_reconciled([task.name])
    await definitions.reconciled([task])
    (asked,) = await definitions.all()
    assert not asked.reconciled
    await definitions.reconciled([asked])
    (done,) = await definitions.all()
    assert done.reconciled


async def test_a_former_leader_does_not_move_the_checkpoint(
    rig: Rig, scans: Scans, definitions: Definitions
) -> None:
    task = await announced(rig, definitions)
    await scans.save(rig.source, [task], Checkpoint(7, 1000), 2)
    await scans.save(rig.source, [task], Checkpoint(9, 2000), 1)
    assert await scans.checkpoint(rig.source, [task]) == Checkpoint(7, 1000)
    await scans.save(rig.source, [task], Checkpoint(9, 2000), 3)
    assert await scans.checkpoint(rig.source, [task]) == Checkpoint(9, 2000)
