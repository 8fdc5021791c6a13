"""What a deployment would change: the definitions of the code beside those in force. Pure; counts are filled in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from oplogue.model.definition import TaskDefinition
from oplogue.model.durations import format_duration
from oplogue.model.projection import WHOLE_DOCUMENT
from oplogue.model.retry import describe

ChangeKind = Literal["added", "edited", "removed", "unchanged"]


@dataclass(frozen=True, slots=True)
class Edit:
    """One option of a task that is another in the code."""

    option: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What a reconciliation would plan; None where counting took too long."""

    without_record: int | None
    """Documents that match and have no record."""
    changed: int | None
    """Documents whose record has other watched values, or was left: their task would run again."""


@dataclass(frozen=True, slots=True)
class TaskChange:
    """One task: of the code, or stored and in the code no more."""

    task: str
    source: str
    kind: ChangeKind
    edits: tuple[Edit, ...] = ()
    carried_by: tuple[str, ...] = ()
    """The live instances that have the task."""
    reconciliation: Expected | None = None
    """None: no reconciliation would be made."""
    reprocesses: int | None = None
    """How many records the new handler version would run again; None: it reprocesses nothing."""
    records: int | None = None
    """Of a removed task: how many records are kept."""
    note: str | None = None
    """What else is to be known before it is deployed."""


@dataclass(frozen=True, slots=True)
class MissingIndex:
    """An index that the first instance builds as it starts."""

    source: str
    name: str


@dataclass(frozen=True, slots=True)
class Deployment:
    """Everything that would change."""

    tasks: tuple[TaskChange, ...]
    indexes: tuple[MissingIndex, ...]

    @property
    def changes_nothing(self) -> bool:
        """Whether the database is as the code wants it."""
        return not self.indexes and all(
            change.kind == "unchanged" and change.reconciliation is None for change in self.tasks
        )


def compare(before: TaskDefinition, after: TaskDefinition, *, same_trigger: bool) -> tuple[Edit, ...]:
    """The options that differ, as a person would write them. What nobody but an instance knows is not compared."""
    old, new = _options(before), _options(after)
    if same_trigger:  # order alone is no change
        for option in ("filter", "watch_projection"):
            old[option] = new[option]
    return tuple(Edit(name, old[name], new[name]) for name in new if old[name] != new[name])


def warning(
    before: TaskDefinition, after: TaskDefinition, others: Sequence[str], *, comes_back: bool
) -> str | None:
    """What the edits alone don't say."""
    old, new = before.evolution, after.evolution
    if before.source != after.source:
        return f"its records beside {before.source} are kept, and nobody runs them any more"
    if new.handler_version < old.handler_version:
        return f"the handler version goes down from {old.handler_version}: nothing is reprocessed"
    if comes_back and others:
        return "it was in force before: it comes back when no live instance has the present one any more"
    if new.handler_version > old.handler_version and new.on_handler_version_change != "none":
        return f"instances below version {new.handler_version} start no more runs of it"
    return None


def _options(definition: TaskDefinition) -> dict[str, str]:
    evolution, cleanup = definition.evolution, definition.cleanup_policy
    return {
        "collection": str(definition.source),
        "filter": _text(definition.filter.raw),
        "watch_projection": _watched(definition),
        "debounce": format_duration(definition.debounce),
        "max_wait": format_duration(definition.max_wait),
        "retry_policy": _named(describe(definition.retry_policy)),
        "cleanup_policy": f"{cleanup.delete_when}, keep_for {format_duration(cleanup.keep_for)}",
        "execution_history_limit": str(definition.execution_history_limit),
        "priority": str(definition.priority),
        "handler_version": str(evolution.handler_version),
        "on_handler_version_change": evolution.on_handler_version_change,
        "reconcile_on_trigger_change": str(evolution.reconcile_on_trigger_change),
    }


def _watched(definition: TaskDefinition) -> str:
    expression = definition.projection.expression
    return "the whole document" if expression == WHOLE_DOCUMENT else _text(expression)


def _named(policy: Mapping[str, object]) -> str:
    options = ", ".join(f"{name}={value}" for name, value in policy.items() if name != "type")
    return f"{policy['type']}({options})"


def _text(value: object) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)
