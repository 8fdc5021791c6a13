"""A check-up of a deployment: what `oplogue doctor` and `App.check_up` do.

It needs the database alone, no instance, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from oplogue.clock import Clock
from oplogue.model.checkup import Access, Facts, Finding, Server, TaskFacts
from oplogue.model.definition import Namespace, TaskDefinition
from oplogue.model.findings import judge, judge_access, judge_server
from oplogue.store import Client
from oplogue.store.checkup import FAILED, PARKED, Checkup, position_time, settings_of
from oplogue.store.controls import Control, Controls
from oplogue.store.definitions import Definitions, StoredTask
from oplogue.store.documents import server_time
from oplogue.store.faults import StoreError, describe, is_forbidden
from oplogue.store.instances import Instances, LiveInstance
from oplogue.store.leadership import Leadership

_BOUND = timedelta(seconds=5)


async def check_up(
    client: Client,
    uri: str | None,
    globals_: Namespace,
    own: Sequence[TaskDefinition] = (),
    *,
    clock: Clock,
) -> tuple[Finding, ...]:
    """What is well and what is not. ``own`` are definitions that no instance may have announced yet."""
    checkup = Checkup(client, uri, bound=_BOUND, clock=clock)
    try:
        server = await checkup.server()
    except StoreError as error:
        return (_unreachable(error),)
    if not server.replica_set and not server.sharded:
        return judge_server(server)
    access: Access | None = None
    try:
        access = await _access(checkup, globals_, {task.source for task in own})
        return judge(await _facts(checkup, server, client, globals_, own))
    except StoreError as error:
        # Where a privilege is missing the rest can't be read: but which it is can be said.
        refused = judge_access(access) if is_forbidden(error) and access is not None else [_silent(error)]
        return (*judge_server(server), *refused)


async def _access(checkup: Checkup, globals_: Namespace, sources: Collection[Namespace]) -> Access:
    user, privileges = await checkup.privileges()
    written: dict[str, set[str]] = {globals_.database: {globals_.collection}}
    for source in sources:
        written.setdefault(source.database, set()).add(source.tasks.collection)
    return Access(
        user,
        privileges,
        {database: frozenset(names) for database, names in written.items()},
        watched=frozenset(source.database for source in sources) or frozenset({globals_.database}),
    )


async def _facts(
    checkup: Checkup, server: Server, client: Client, globals_: Namespace, own: Sequence[TaskDefinition]
) -> Facts:
    stored = await Definitions(client, globals_, bound=_BOUND).all()
    sources = {task.planned.definition.source for task in stored} | {task.source for task in own}
    leadership = Leadership(client, globals_, bound=_BOUND)
    leader = await leadership.leader()
    instances = await Instances(client, globals_, bound=_BOUND).live()
    controls = await Controls(client, globals_, bound=_BOUND).all()
    return Facts(
        server=server,
        settings=settings_of(client),
        now=await server_time(client, bound=_BOUND),
        access=await _access(checkup, globals_, sources),
        globals_collection=globals_.collection,
        default_write_concern=await checkup.default_write_concern(),
        arbiters=await checkup.arbiters(),
        oplog=await checkup.oplog(),
        position_at=position_time(await leadership.saved()),
        signals=await checkup.signals(globals_),
        leader=None if leader is None else leader.id,
        instances=len(instances),
        tasks=tuple([await _task(checkup, task, instances, controls) for task in stored]),
        records=tuple([await checkup.records(source) for source in sorted(sources, key=str)]),
    )


async def _task(
    checkup: Checkup, task: StoredTask, instances: Sequence[LiveInstance], controls: Mapping[str, Control]
) -> TaskFacts:
    source = task.planned.definition.source
    return TaskFacts(
        name=task.name,
        carried=any(task.name in instance.carries for instance in instances),
        reconciled=task.reconciled,
        paused_until=controls.get(task.name, Control()).paused_until,
        failed=await checkup.count(source, {"task": task.name, **FAILED}),
        parked=await checkup.count(source, {"task": task.name, **PARKED}),
    )


def _unreachable(error: StoreError) -> Finding:
    if is_forbidden(error):
        mend = "put a user and its password into the URI, and authSource= where it is of another database"
        return Finding("server", "problem", f"the user is refused: {describe(error)}", mend)
    mend = "start MongoDB, or give its address: --uri mongodb://host:27017/database, or OPLOGUE_MONGODB_URI"
    return Finding("server", "problem", f"no MongoDB answers: {describe(error)}", mend)


def _silent(error: StoreError) -> Finding:
    return Finding(
        "server", "problem", f"it stopped answering: {describe(error)}", "look at the server's log"
    )
