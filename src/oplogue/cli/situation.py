"""How a cluster stands, on the screen: who is alive, what waits, what is held back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oplogue.cli.wording import ago, count_of, span, until
from oplogue.model.reconciliation import Reconciliation
from oplogue.model.situation import InstanceState, Situation, TaskState

_LATE = timedelta(seconds=10)
"""A lag above it is not the ordinary wait for a batch."""
_OVERDUE = timedelta(minutes=1)
_LARGEST_NAME = 32
_NARROW = 64
_COLUMNS = ("pending", "processing", "dirty", "failed", "oldest due")
_NARROW_COLUMNS = ("pending", "processing", "failed")


def situation_document(seen: Situation) -> dict[str, object]:
    """The same for a program: lengths of time are in seconds."""
    tasks = [_fields(task) for task in seen.tasks]
    for task in tasks:
        task["waited_seconds"] = _seconds(task.pop("waited"))
    return {
        "at": seen.at,
        "database": seen.database,
        "leader": seen.leader,
        "lag_seconds": _seconds(seen.lag),
        "slots": seen.slots,
        "in_use": seen.in_use,
        "reconciled_at": seen.reconciled_at,
        "cleaned_up_at": seen.cleaned_up_at,
        "tasks": tasks,
        "reconciliations": [_reconciliation(one) for one in seen.reconciliations],
        "instances": seen.instances,
    }


def _reconciliation(one: Reconciliation) -> dict[str, Any]:
    return {
        "collection": str(one.source),
        "tasks": one.tasks,
        "documents": one.documents,
        "estimate": one.estimate,
        "per_second": one.per_second,
        "seconds_left": _seconds(one.remaining),
        "started_at": one.started_at,
    }


def _fields(one: Any) -> dict[str, Any]:
    return {field.name: getattr(one, field.name) for field in fields(one)}


def _seconds(time: timedelta | None) -> float | None:
    return None if time is None else time.total_seconds()


def situation_picture(seen: Situation, width: int) -> RenderableType:
    """All of it."""
    parts: list[RenderableType] = [_headline(seen)]
    if seen.tasks:
        parts += [Text(), _tasks(seen, narrow=width < _NARROW)]
        notes = [(task.task, note) for task in seen.tasks if (note := _notes(task, seen.at))]
        if notes:
            parts += [Text(), _listed(notes)]
    if seen.reconciliations:
        parts += [Text(), _listed([(str(one.source), _far(one)) for one in seen.reconciliations])]
    if seen.instances:
        parts += [Text(), _instances(seen)]
    return Group(*parts)


def _headline(seen: Situation) -> Text:
    text = Text(seen.database, "bold").append("  ")
    if seen.instances:
        text.append(count_of(len(seen.instances), "instance"))
        text.append(f", {seen.in_use:,} of {count_of(seen.slots, 'slot')} in use")
    else:
        text.append("no instance is alive: nothing is planned or run", "red bold")
    text.append("\n")
    if seen.leader is not None:
        text.append("leader ", "dim").append(seen.leader.id)
        text.append(f", term {seen.leader.term}{_for(seen.leader.since, seen.at)}", "dim")
    else:
        text.append("nobody leads: nothing is planned", "red")
    text.append("\n").append("stream lag ", "dim")
    if seen.lag is None:
        text.append("–")
    else:
        text.append(span(seen.lag), "red" if seen.lag > _LATE else "")
    text.append("   reconciled ", "dim").append(ago(seen.reconciled_at, seen.at))
    return text.append("   cleaned up ", "dim").append(ago(seen.cleaned_up_at, seen.at))


def _for(since: datetime | None, now: datetime) -> str:
    return "" if since is None else f", for {span(now - since)}"


def _tasks(seen: Situation, *, narrow: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=False)
    table.add_column("task", no_wrap=True, overflow="ellipsis", min_width=8, max_width=_LARGEST_NAME)
    for name in _NARROW_COLUMNS if narrow else _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    for task in seen.tasks:
        cells = {
            "pending": _number(task.pending, "yellow"),
            "processing": _number(task.processing + task.processing_dirty, "cyan"),
            "dirty": _number(task.processing_dirty, "cyan"),
            "failed": _number(task.failed, "red"),
            "oldest due": _oldest(task),
        }
        table.add_row(
            Text(task.task, "bold"), *(cells[name] for name in (_NARROW_COLUMNS if narrow else _COLUMNS))
        )
    return table


def _number(count: int, style: str) -> Text:
    return Text(f"{count:,}", style if count else "dim")


def _oldest(task: TaskState) -> Text:
    if task.waited is None:
        return Text("–", "dim")
    if task.waited < timedelta():
        return Text(f"in {span(task.waited)}")
    return Text(f"{span(task.waited)} late", "red" if task.waited > _OVERDUE else "")


def _notes(task: TaskState, now: datetime) -> Text:
    """What is unusual about a task."""
    notes: list[tuple[str, str]] = []
    if not task.instances:
        notes.append(("no instance runs it", "red"))
    if task.paused_until is not None:
        notes.append((f"paused {until(task.paused_until)}", "yellow"))
    if task.throttled_until is not None:
        notes.append((f"throttled, again {ago(task.throttled_until, now)}", "yellow"))
    if task.gate:
        notes.append((f"handler version {task.gate} or higher only", "dim"))
    if not task.reconciled:
        notes.append(("to be reconciled", "cyan"))
    return Text("; ").join(Text(words, style) for words, style in notes)


def _listed(notes: Sequence[tuple[str, Text]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=_LARGEST_NAME)
    table.add_column(overflow="fold")
    for name, note in notes:
        table.add_row(Text(name, "bold"), note)
    return table


def _far(one: Reconciliation) -> Text:
    """How far a reconciliation has come."""
    if one.waits:
        return Text(f"waits to be reconciled, about {count_of(one.estimate, 'document')}", "cyan")
    text = f"reconciling, {one.share:.0%}: {one.documents:,} of about {count_of(one.estimate, 'document')}"
    if one.remaining is not None:
        text += f", {one.per_second:,.0f}/s, {span(one.remaining)} left"
    return Text(text, "cyan")


def _instances(seen: Situation) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=False)
    table.add_column("instance", no_wrap=True, overflow="ellipsis", min_width=8)
    table.add_column("slots", justify="right", no_wrap=True)
    table.add_column("started", no_wrap=True)
    table.add_column("tasks", overflow="fold", ratio=1)
    for instance in seen.instances:
        name = Text(instance.id)
        if instance.leads:
            name.append(" (leads)", "green")
        table.add_row(
            name,
            f"{instance.in_use} of {instance.slots}",
            ago(instance.started_at, seen.at),
            _carried(instance),
        )
    return table


def _carried(instance: InstanceState) -> Text:
    text = Text(str(len(instance.versions)))
    if instance.outdated:
        other = ", ".join(f"{name} (version {instance.versions[name]})" for name in instance.outdated)
        text.append(f"; other code than in force: {other}", "yellow")
    return text
