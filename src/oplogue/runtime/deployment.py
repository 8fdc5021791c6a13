"""A plan of a deployment: what `oplogue plan` and `App.plan_deployment` do. It writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from oplogue.clock import Clock
from oplogue.model.definition import Namespace, TaskDefinition
from oplogue.model.deployment import Deployment, MissingIndex, TaskChange, compare, warning
from oplogue.store import Client
from oplogue.store.announcements import in_order_of, revision, trigger_hash
from oplogue.store.checkup import Checkup
from oplogue.store.connection import check_server
from oplogue.store.definitions import Definitions, StoredTask
from oplogue.store.deployment import Forecast
from oplogue.store.documents import SourceDocuments
from oplogue.store.instances import Instances, LiveInstance

_BOUND = timedelta(seconds=10)


async def plan_deployment(
    client: Client, globals_: Namespace, own: Sequence[TaskDefinition], *, clock: Clock
) -> Deployment:
    """What would change if an instance with these tasks started now."""
    await check_server(client, bound=_BOUND)
    for definition in own:
        await SourceDocuments(client, definition.source, bound=_BOUND).check(definition)
    stored = {task.name: task for task in await Definitions(client, globals_, bound=_BOUND).all()}
    live = await Instances(client, globals_, bound=_BOUND).live()
    forecast = Forecast(client, bound=_BOUND)
    mine = {definition.task for definition in own}
    return Deployment(
        tasks=(
            *[await _of_code(definition, stored.get(definition.task), live, forecast) for definition in own],
            *[await _removed(task, live, forecast) for name, task in stored.items() if name not in mine],
        ),
        indexes=await _missing(Checkup(client, None, bound=_BOUND, clock=clock), own),
    )


async def _of_code(
    definition: TaskDefinition, stored: StoredTask | None, live: Iterable[LiveInstance], forecast: Forecast
) -> TaskChange:
    name, source = definition.task, str(definition.source)
    if stored is None:
        expected = await forecast.reconciliation(definition)
        return TaskChange(name, source, "added", carried_by=_carriers(name, live), reconciliation=expected)
    before = stored.planned.definition
    after = in_order_of(definition, before)
    same_trigger = stored.planned.hash == trigger_hash(definition)
    edits = compare(before, after, same_trigger=same_trigger)
    reconciles = not stored.reconciled or (
        not same_trigger and definition.evolution.reconcile_on_trigger_change
    )
    return TaskChange(
        name,
        source,
        "edited" if edits else "unchanged",
        edits,
        _carriers(name, live),
        await forecast.reconciliation(after) if reconciles else None,
        await _reprocessed(before, after, forecast),
        note=warning(
            before, after, _others(name, stored, live), comes_back=revision(definition) in stored.replaced
        ),
    )


async def _reprocessed(before: TaskDefinition, after: TaskDefinition, forecast: Forecast) -> int | None:
    policy = after.evolution.on_handler_version_change
    if policy == "none" or after.evolution.handler_version <= before.evolution.handler_version:
        return None
    return await forecast.reprocessed(after.task, after.source, everything=policy == "reprocess_all")


async def _removed(task: StoredTask, live: Iterable[LiveInstance], forecast: Forecast) -> TaskChange:
    source = task.planned.definition.source
    return TaskChange(
        task.name,
        str(source),
        "removed",
        carried_by=_carriers(task.name, live),
        records=await forecast.records(task.name, source),
    )


def _carriers(name: str, live: Iterable[LiveInstance]) -> tuple[str, ...]:
    return tuple(sorted(instance.id for instance in live if name in instance.carries))


def _others(name: str, stored: StoredTask, live: Iterable[LiveInstance]) -> list[str]:
    """The live instances that keep the present definition in force."""
    carries: Mapping[str, str] = {
        instance.id: instance.carries[name].revision for instance in live if name in instance.carries
    }
    return [id_ for id_, carried in carries.items() if carried == stored.revision]


async def _missing(checkup: Checkup, own: Iterable[TaskDefinition]) -> tuple[MissingIndex, ...]:
    sources = sorted({definition.source for definition in own})
    found = [await checkup.records(source) for source in sources]
    return tuple(
        MissingIndex(f"{records.source}_tasks", name)
        for records in found
        for name, _ in records.missing_indexes
    )
