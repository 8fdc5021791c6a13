"""What ``oplogue plan`` does: the plan of a deployment, printed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict

from rich.text import Text

from oplogue.cli.failures import OK
from oplogue.cli.output import Output
from oplogue.cli.targets import check_target, find_app
from oplogue.model.deployment import Deployment, TaskChange

_SIGNS = {
    "added": ("+", "green"),
    "edited": ("~", "yellow"),
    "removed": ("-", "red"),
    "unchanged": ("=", "dim"),
}


def foretell(target: str, output: Output) -> int:
    """Ask what would change, and print it."""
    check_target(target)
    deployment = asyncio.run(find_app(target).plan_deployment())
    if output.as_json:
        output.write({**asdict(deployment), "changes_nothing": deployment.changes_nothing}, indent=2)
    else:
        # Filters are copied: they must not be broken into lines.
        output.screen.print(_picture(deployment), highlight=False, soft_wrap=True)
    return OK


def _picture(deployment: Deployment) -> Text:
    picture = Text()
    for change in deployment.tasks:
        sign, style = _SIGNS[change.kind]
        picture.append(f"{sign} {change.task}", style).append(f" on {change.source}\n", "dim")
        for edit in change.edits:
            picture.append(f"    {edit.option}\n", "bold")
            picture.append(f"      - {edit.before}\n", "red").append(f"      + {edit.after}\n", "green")
        for line in _lines(change):
            picture.append(f"    {line}\n")
    for index in deployment.indexes:
        picture.append("+ ", "green").append(f"index {index.name} of {index.source}\n")
    return picture.append(_summary(deployment))


def _lines(change: TaskChange) -> Iterator[str]:
    if change.kind == "removed":
        kept = f"its {_many(change.records, 'record')} are kept"
        if change.carried_by:
            yield f"not in this app; {', '.join(change.carried_by)} have it; {kept}"
        else:
            yield f"not in this app, and no live instance has it; {kept}, and nobody runs them"
    if change.reconciliation is not None:
        yield (
            f"reconciliation: {_many(change.reconciliation.without_record, 'document')} without a record, "
            f"{_many(change.reconciliation.changed, 'document')} with other watched values"
        )
    if change.reprocesses is not None:
        yield f"reprocessing: {_many(change.reprocesses, 'record')} run again"
    if change.note is not None:
        yield change.note


def _many(count: int | None, what: str) -> str:
    if count is None:
        return f"too many {what}s to count"
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _summary(deployment: Deployment) -> str:
    if deployment.changes_nothing:
        return "nothing would change"
    kinds = [change.kind for change in deployment.tasks]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in _SIGNS)
    return f"tasks: {counts}; indexes to build: {len(deployment.indexes)}"
