"""What the facts of a check-up mean: findings, each with the way to mend it. Pure.

*Problem*: something does not work, or will not after the next restart. *Warning*: it works, and somebody should look.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from oplogue.model.checkup import Access, Facts, Finding, Records, Server, Settings
from oplogue.model.durations import format_duration

OLDEST_SERVER = (6, 0)
FAR_AWAY_YEAR = 9000
"""A pause until then has no end."""

_CLOCK_WARNING, _CLOCK_PROBLEM = timedelta(seconds=1), timedelta(seconds=30)
_SHORT_WINDOW, _TINY_WINDOW = timedelta(hours=24), timedelta(hours=1)
_TOO_EMPTY, _FULL = 0.01, 0.9
_SLOW_HEARTBEAT = timedelta(seconds=5)
_LONG = timedelta(seconds=30)
_SHORTEST_OPERATION = timedelta(seconds=10)
_READS_AND_WRITES = frozenset({"find", "insert", "update", "remove"})
_FOLLOWS = frozenset({"find", "changeStream"})
_PREPARES = frozenset({"createCollection", "createIndex", "listIndexes"})


def judge(facts: Facts) -> tuple[Finding, ...]:
    """All findings, in the order of the checks."""
    return (
        *judge_server(facts.server),
        *judge_access(facts.access),
        *_indexes(facts.records),
        *_oplog(facts),
        _signals(facts),
        *_concerns(facts),
        *_client(facts.settings),
        *_instances(facts),
        *_tasks(facts),
    )


def judge_server(server: Server) -> tuple[Finding, ...]:
    """The server itself: what can be said of it before anything else is known."""
    version = ".".join(map(str, server.version))
    return (
        _found("version", f"MongoDB {version}")
        if server.version[:2] >= OLDEST_SERVER
        else _problem("version", f"MongoDB {version} is too old", "upgrade to MongoDB 6.0 or later"),
        _found(
            "replica set", f"member of {server.replica_set}" if server.replica_set else "a sharded cluster"
        )
        if server.replica_set or server.sharded
        else _problem(
            "replica set",
            "the server is not a member of a replica set, and has no change streams",
            "start it as one (one member will do): mongod --replSet rs0, then rs.initiate() in mongosh",
        ),
        *_clocks(server),
    )


def judge_access(access: Access) -> list[Finding]:
    """What the user may not do."""
    if access.privileges is None:
        return [_found("privileges", "access control is off: everything is allowed")]
    findings = [
        _problem(
            "privileges",
            f"{access.user} may not {', '.join(sorted(missing))} on {place}",
            f"in mongosh: db.getSiblingDB('admin').grantRolesToUser({_name_of(access.user)!r}, "
            f"[{{role: '{role}', db: '{database}'}}]) (in the database that the user is of)",
        )
        for place, missing, role, database in _refused(access)
    ]
    return findings or [_found("privileges", f"{access.user} has all that are needed")]


def weak_settings(settings: Settings) -> list[tuple[str, str, str]]:
    """Of a client that a user made: the option, its value, and what would be right, where it is weaker than ours."""
    found: list[tuple[str, str, str]] = []
    if settings.heartbeat > _SLOW_HEARTBEAT:
        right = "1000: a frozen primary is noticed after 2 s, not half a minute"
        found.append(("heartbeatFrequencyMS", _milliseconds(settings.heartbeat), right))
    if settings.connect_timeout is None or settings.connect_timeout >= timedelta(seconds=20):
        found.append(("connectTimeoutMS", _milliseconds(settings.connect_timeout), "2000"))
    if settings.server_selection_timeout > _LONG:
        found.append(("serverSelectionTimeoutMS", _milliseconds(settings.server_selection_timeout), "10000"))
    if settings.operation_timeout is not None and settings.operation_timeout < _SHORTEST_OPERATION:
        right = "none: it would cut off the change stream's waits; the engine bounds its operations itself"
        found.append(("timeoutMS", _milliseconds(settings.operation_timeout), right))
    if settings.socket_timeout is not None and settings.socket_timeout < _SHORTEST_OPERATION:
        right = "none, or above 10000: the engine waits for changes longer than that"
        found.append(("socketTimeoutMS", _milliseconds(settings.socket_timeout), right))
    if settings.write_concern not in (None, "majority"):
        right = "majority: what a handler wrote must not be rolled back after its run counts as done"
        found.append(("w", str(settings.write_concern), right))
    if not settings.retries_writes:
        found.append(("retryWrites", "false", "true: an election would fail your handlers' writes"))
    return found


def _clocks(server: Server) -> list[Finding]:
    offset = server.clock_offset
    off = abs(offset) - server.clock_doubt
    findings = [
        _warning(
            "clock",
            f"this machine's clock is {_seconds(offset)} off the server's",
            "synchronize it (chrony, systemd-timesyncd); due times are the server's, but logs and histories mislead",
        )
        if off > _CLOCK_WARNING
        else _found("clock", f"within {_seconds(max(abs(offset), server.clock_doubt))} of the server's")
    ]
    if len(server.member_offsets) > 1:
        spread = max(server.member_offsets.values()) - min(server.member_offsets.values())
        spread = max(spread - 2 * server.clock_doubt, timedelta())
        text = f"the clocks of {len(server.member_offsets)} members differ by {_seconds(spread)}"
        mend = "synchronize the members' clocks: after an election leases and due times jump by that"
        level = "problem" if spread > _CLOCK_PROBLEM else "warning" if spread > _CLOCK_WARNING else "ok"
        findings.append(Finding("members' clocks", level, text, None if level == "ok" else mend))
    return findings


def _refused(access: Access) -> Iterable[tuple[str, frozenset[str], str, str]]:
    for database, collections in sorted(access.written.items()):
        for collection in sorted(collections):
            missing = (_READS_AND_WRITES | _PREPARES) - _allowed(access, database, collection)
            if missing:
                yield f"{database}.{collection}", missing, "readWrite", database
    if len(access.watched) > 1:
        missing = _FOLLOWS - _allowed(access, "", "")
        if missing:
            yield (
                "all databases (tasks of several databases are followed together)",
                missing,
                ("readAnyDatabase"),
                "admin",
            )
        return
    for database in access.watched:
        missing = _FOLLOWS - _allowed(access, database, "")
        if missing:
            yield f"the whole of {database}", missing, "read", database


def _allowed(access: Access, database: str, collection: str) -> frozenset[str]:
    covering = (one.actions for one in access.privileges or () if one.covers(database, collection))
    return frozenset[str]().union(*covering)


def _indexes(records: Iterable[Records]) -> list[Finding]:
    findings = [
        _problem(
            "indexes",
            f"the records of {one.source} lack {name}",
            f"start an instance of the app, which builds it; or in mongosh: {command}",
        )
        for one in records
        if one.exists
        for name, command in one.missing_indexes
    ]
    unbuilt = [one.source for one in records if not one.exists]
    if unbuilt:
        text = f"no records yet of {', '.join(unbuilt)}: the first instance makes their collection"
        return [*findings, _found("indexes", text)]
    return findings or [_found("indexes", "all are there")]


def _oplog(facts: Facts) -> list[Finding]:
    oplog = facts.oplog
    if oplog is None:
        mend = "grant clusterMonitor on admin and read on local to see it: "
        mend += (
            "db.getSiblingDB('admin').grantRolesToUser(…, ['clusterMonitor', {role: 'read', db: 'local'}])"
        )
        return [_warning("oplog", "its window could not be read", mend)]
    findings = [_window(oplog.window, oplog.fill)]
    if facts.position_at is None:
        return findings
    age = max(facts.now - facts.position_at, timedelta())
    text = f"the stream's position is {format_duration(_whole(age))} old"
    mend = "start an instance, so that a leader follows the changes; db.adminCommand({replSetResizeOplog: 1, size: …})"
    if facts.position_at < oplog.oldest:
        lost = f"{text}, and the oplog no longer reaches back to it: the next leader reconciles everything"
        findings.append(_problem("position", lost, mend))
    elif age > max(oplog.window / 2, timedelta(minutes=1)):
        findings.append(_problem("position", f"{text}: more than half of the oplog's window", mend))
    else:
        findings.append(_found("position", text))
    return findings


def _window(window: timedelta, fill: float | None) -> Finding:
    if fill is not None and fill < _TOO_EMPTY:
        return _found("oplog", "nearly empty yet: nothing is forgotten")
    # One that is not full yet still grows: what it will hold is judged.
    expected = window if fill is None or fill >= _FULL else window / fill
    text = f"the oplog holds about {format_duration(_whole(expected))} of changes at their present rate"
    mend = "in mongosh: db.adminCommand({replSetResizeOplog: 1, size: <megabytes>, minRetentionHours: 24})"
    if expected < _TINY_WINDOW:
        return _problem("oplog", f"{text}: an outage of that length costs a full reconciliation", mend)
    if expected < _SHORT_WINDOW:
        return _warning("oplog", f"{text}: less than a day", mend)
    return _found("oplog", text)


def _signals(facts: Facts) -> Finding:
    name = f"{facts.globals_collection}_signals"
    if facts.signals == "capped":
        return _found("signals", f"{name} is capped")
    if facts.signals == "missing" and not facts.instances:
        return _found("signals", f"{name} is made by the first instance")
    mend = f"in mongosh: db.runCommand({{convertToCapped: '{name}', size: 65536}})"
    if facts.signals == "missing":
        mend = "restart the instances with a user that may createCollection (role readWrite)"
    text = f"{name} is {'missing' if facts.signals == 'missing' else 'not capped'}: instances wake by polling only"
    return _warning("signals", text, mend)


def _concerns(facts: Facts) -> list[Finding]:
    default = facts.default_write_concern
    findings = [
        _found("write concern", "majority by default")
        if default in (None, "majority")
        else _warning(
            "write concern",
            f"the cluster's default is w: {default!r}: your own acknowledged writes can be rolled back after a "
            "task ran on them (the engine's are always majority)",
            "in mongosh: db.adminCommand({setDefaultRWConcern: 1, defaultWriteConcern: {w: 'majority'}})",
        )
    ]
    if facts.arbiters:
        text = (
            f"{facts.arbiters} arbiter: with a data member down, no majority acknowledges and no task goes on"
        )
        findings.append(_warning("arbiters", text, "replace the arbiter with a member that holds data"))
    return findings


def _client(settings: Settings) -> list[Finding]:
    weak = [
        _warning("client", f"{option}={value} is weak", f"set {option} in the URI or the client: {right}")
        for option, value, right in weak_settings(settings)
    ]
    return weak or [_found("client", "its timeouts and concerns are sound")]


def _instances(facts: Facts) -> list[Finding]:
    if not facts.instances:
        return [
            _warning(
                "instances", "no instance is alive: nothing is planned or run", "oplogue worker MODULE:APP"
            )
        ]
    alive = _found("instances", f"{facts.instances} alive")
    if facts.leader is None:
        text = "none leads now: nothing is planned"
        mend = "one takes over within a lease; if this lasts, look for leadership and part.failed events in their logs"
        return [alive, _problem("leader", text, mend)]
    return [alive, _found("leader", f"{facts.leader} leads")]


def _tasks(facts: Facts) -> list[Finding]:
    findings: list[Finding] = []
    for task in facts.tasks:
        if not task.carried and facts.instances:
            mend = (
                "start a worker that has it; if it was removed for good, forget it in mongosh: "
                f"db.{facts.globals_collection}.deleteOne({{_id: 'task:{task.name}'}})"
            )
            findings.append(_warning("tasks", f"{task.name}: no live instance runs it", mend))
        if task.paused_until is not None and task.paused_until > facts.now:
            endless = task.paused_until.year > FAR_AWAY_YEAR
            until = "without an end" if endless else f"until {task.paused_until:%Y-%m-%d %H:%M} UTC"
            mend = f"when the reason is gone: oplogue tasks resume {task.name}"
            findings.append(_warning("tasks", f"{task.name}: paused {until}", mend))
        for count, what in ((task.failed, "failed for good"), (task.parked, "could not be planned (parked)")):
            if count:
                mend = f"see oplogue tasks list -t {task.name} -s failed; when the cause is gone: "
                mend += f"oplogue tasks retry -t {task.name} -s failed"
                findings.append(_warning("tasks", f"{task.name}: {count} records {what}", mend))
        if task.failed is None:
            findings.append(
                _warning("tasks", f"{task.name}: its failed records could not be counted in time", None)
            )
        if not task.reconciled:
            findings.append(_found("tasks", f"{task.name}: its documents are being reconciled"))
    return findings or [_found("tasks", f"{len(facts.tasks)}, none failed, parked, paused or abandoned")]


def _found(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def _warning(check: str, text: str, mend: str | None) -> Finding:
    return Finding(check, "warning", text, mend)


def _problem(check: str, text: str, mend: str) -> Finding:
    return Finding(check, "problem", text, mend)


def _seconds(length: timedelta) -> str:
    return f"{length.total_seconds():.1f} s"


def _milliseconds(length: timedelta | None) -> str:
    return "none" if length is None else str(length // timedelta(milliseconds=1))


def _whole(length: timedelta) -> timedelta:
    return timedelta(seconds=round(length.total_seconds()))


def _name_of(user: str | None) -> str:
    return (user or "").partition("@")[0]
