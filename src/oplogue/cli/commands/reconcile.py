"""``oplogue reconcile``: plan every document once more, and watch how far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from oplogue.cli.failures import OK, WRONG
from oplogue.cli.operating import Yes, on_console
from oplogue.cli.output import Output
from oplogue.cli.wording import count_of

if TYPE_CHECKING:
    from oplogue.runtime.console import Console


@on_console
async def reconcile(
    console: Console,
    out: Output,
    *,
    tasks: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TASK]...", help="Of these tasks; of all where none is named."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many documents would be looked at.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Show how far it has come until it is finished.")
    ] = True,
    yes: Yes = False,
) -> int:
    """Plan every document once more.

    The leader does it: what has no record gets one, what changed unseen runs, what is up to date does not run
    again. Ctrl-C ends the waiting, not the reconciliation: exit code 130.
    """
    from oplogue.cli.reconciling import plans_document, plans_table, request

    plans = await console.desk.would_reconcile(tasks or None)
    total = sum(plan.estimate for plan in plans)
    if dry_run:
        out.show(lambda _screen: plans_table(plans, total), plans_document(plans, total, dry_run=True))
        return OK
    if not plans:
        out.note("oplogue: there is no task: no instance has been started on this database")
        return WRONG
    if not await console.instances.live():
        out.note("oplogue: no instance is alive that could do it; start one: oplogue worker MODULE:APP")
        return WRONG
    question = f"Look at about {count_of(total, 'document')} of {count_of(len(plans), 'collection')} again?"
    # Nothing is lost by it: where nobody can be asked it is done.
    if not out.confirm(question, yes=yes or not out.can_ask):
        out.note("Nothing was changed.")
        return WRONG
    return await request(console, out, plans, wait=wait)
