"""What ``oplogue reconcile`` does once it is decided: the request, and the wait, with a bar for each collection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oplogue.cli.failures import OK, WRONG
from oplogue.cli.output import Output
from oplogue.cli.wording import count_of
from oplogue.clock import Clock
from oplogue.model.reconciliation import Reconciliation

if TYPE_CHECKING:
    from oplogue.runtime.console import Console

_LOOK = 0.25
_NOBODY_FOR = 60.0
"""Seconds without any live instance after which nobody is waited for: a lease, and a restart."""

Tell = Callable[[Sequence[Reconciliation]], None]


async def request(console: Console, out: Output, plans: Sequence[Reconciliation], *, wait: bool) -> int:
    """Ask the leader for it, and wait until it is done; the exit code."""
    names = [name for plan in plans for name in plan.tasks]
    await console.desk.reconcile(names)
    if wait:
        with out.bars([(str(plan.source), plan.estimate) for plan in plans]) as bars:

            def tell(under_way: Sequence[Reconciliation]) -> None:
                far = {str(one.source): one for one in under_way}
                for plan in plans:
                    name = str(plan.source)
                    one = far.get(name)
                    bars(name, plan.estimate if one is None else one.documents, one and one.estimate)

            done = await _wait(console, set(names), tell, clock=Clock())
        if not done:
            out.note("oplogue: no instance is alive any more; the next one that starts goes on with it")
            return WRONG
    state = "reconciled" if wait else "requested"
    total = sum(plan.estimate for plan in plans)
    out.show(
        lambda _screen: f"{state} {count_of(len(names), 'task')}, about {count_of(total, 'document')}",
        {**plans_document(plans, total, dry_run=False), "state": state},
    )
    return OK


async def _wait(console: Console, names: set[str], tell: Tell, *, clock: Clock) -> bool:
    """Until these are reconciled; False where nobody is left who could do it."""
    seen_alive = clock.monotonic()
    while True:
        left = [one for one in await console.desk.reconciliations() if names.intersection(one.tasks)]
        tell(left)
        if not left:
            return True
        if await console.instances.live():
            seen_alive = clock.monotonic()
        elif clock.monotonic() - seen_alive > _NOBODY_FOR:
            return False
        await clock.sleep(_LOOK)


def plans_table(plans: Sequence[Reconciliation], total: int) -> RenderableType:
    """What would be looked at."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=False)
    table.add_column("collection", overflow="fold")
    table.add_column("documents", justify="right", no_wrap=True)
    table.add_column("for", overflow="fold")
    for plan in plans:
        table.add_row(Text(str(plan.source), "bold"), f"{plan.estimate:,}", Text(", ".join(plan.tasks)))
    return Group(table, Text(f"would look at about {count_of(total, 'document')}", "dim"))


def plans_document(plans: Sequence[Reconciliation], total: int, *, dry_run: bool) -> dict[str, Any]:
    """The same for a program."""
    collections = [
        {"collection": str(plan.source), "documents": plan.estimate, "tasks": plan.tasks} for plan in plans
    ]
    return {"documents": total, "collections": collections, "dry_run": dry_run}
