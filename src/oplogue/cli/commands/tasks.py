"""``oplogue tasks``: task records, looked at, run again, deleted; tasks paused and resumed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplogue.cli import options
from oplogue.cli.failures import OK, WRONG
from oplogue.cli.operating import Yes, on_console
from oplogue.cli.output import Output, Progress
from oplogue.cli.wording import count_of
from oplogue.cli.wording import until as until_words
from oplogue.errors import ConfigurationError

if TYPE_CHECKING:
    from oplogue.runtime.console import Console
    from oplogue.store.operations import RecordFilter

HELP = "Task records: find, inspect, retry, delete. Tasks: pause, resume."

Tasks = Annotated[
    list[str] | None, typer.Option("--task", "-t", metavar="NAME", help="Of this task; may be repeated.")
]
Statuses = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        "-s",
        metavar="STATUS",
        help="pending, processing, processing_dirty, completed or failed; may be repeated.",
    ),
]
SourceDocFilter = Annotated[
    str | None,
    typer.Option(
        "--source-doc-filter",
        metavar="JSON",
        help="""Whose source documents match this query, in extended JSON: '{"vip": true}'.""",
    ),
]
ErrorMessage = Annotated[
    str | None,
    typer.Option("--error-message", metavar="TEXT", help="Whose last error contains this text, in any case."),
]
HasError = Annotated[
    bool | None, typer.Option("--has-error/--no-error", help="Whose last run failed, or did not.")
]
Ids = Annotated[
    list[str] | None,
    typer.Option(
        "--id", metavar="ID", help="The record of this id: 24 hex digits, or extended JSON; may be repeated."
    ),
]
All = Annotated[bool, typer.Option("--all", help="All records: where no filter is given, this must be.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many records it would be.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The task's name.")]


@on_console
async def list_(
    console: Console,
    out: Output,
    *,
    task: Tasks = None,
    status: Statuses = None,
    source_doc_filter: SourceDocFilter = None,
    error_message: ErrorMessage = None,
    has_error: HasError = None,
    id_: Ids = None,
    limit: Annotated[str, typer.Option("--limit", metavar="N", help="How many at most, up to 500.")] = "20",
    skip: Annotated[str, typer.Option("--skip", metavar="N", help="How many to leave out first.")] = "0",
    sort: Annotated[
        list[str] | None,
        typer.Option(
            "--sort",
            metavar="FIELD",
            help="A field of the record, -FIELD for the largest first; may be repeated. Without it: what runs "
            "next where only waiting or running records are asked for, else what ended last.",
        ),
    ] = None,
) -> int:
    """List task records."""
    from oplogue.cli.sheets import page_document, page_list

    which = record_filter(task, status, source_doc_filter, error_message, has_error, id_)
    most, left_out = options.whole(limit, "--limit", 1, 500), options.whole(skip, "--skip", 0, 10_000_000)
    order = [options.order(field) for field in sort or _usual_order(status)]
    page = await console.desk.page(which, limit=most, skip=left_out, sort=order)
    now = await console.now()
    out.show(
        lambda screen: page_list(page, now, skip=left_out, width=screen.width),
        page_document(page, limit=most, skip=left_out),
    )
    return OK


@on_console
async def show(
    console: Console,
    out: Output,
    *,
    record: Annotated[
        str, typer.Argument(metavar="ID", help="The record's id: 24 hex digits, or extended JSON.")
    ],
) -> int:
    """Show everything of one record, with its last runs. Exit code 1 where there is none of that id."""
    from oplogue.cli.sheets import record_sheet
    from oplogue.store.extended_json import read_id

    which = record_filter(ids=[record])
    page = await console.desk.page(which, limit=1, skip=0, sort=("id", 1))
    if not page.items:
        out.note(f"oplogue: there is no record {read_id(record, option='ID')!s}")
        return WRONG
    found, now = page.items[0], await console.now()
    out.show(lambda _screen: record_sheet(found, now), found)
    return OK


@on_console
async def retry(
    console: Console,
    out: Output,
    *,
    task: Tasks = None,
    status: Statuses = None,
    source_doc_filter: SourceDocFilter = None,
    error_message: ErrorMessage = None,
    has_error: HasError = None,
    id_: Ids = None,
    every: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Run records again: at once, with a full set of attempts. One that runs now runs once more after that."""
    which = record_filter(task, status, source_doc_filter, error_message, has_error, id_)
    _check_meant(which, every)
    return await _change(console, out, which, ("retry", "retried"), console.desk.retry, dry_run, yes)


@on_console
async def delete(
    console: Console,
    out: Output,
    *,
    task: Tasks = None,
    status: Statuses = None,
    source_doc_filter: SourceDocFilter = None,
    error_message: ErrorMessage = None,
    has_error: HasError = None,
    id_: Ids = None,
    every: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Delete records. A run that is under way loses its lease. A reconciliation plans their documents anew."""
    which = record_filter(task, status, source_doc_filter, error_message, has_error, id_)
    _check_meant(which, every)
    return await _change(console, out, which, ("delete", "deleted"), console.desk.delete, dry_run, yes)


@on_console
async def pause(
    console: Console,
    out: Output,
    *,
    name: Name,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help="For so long ('2h'), or until then ('2030-01-31T08:00Z', UTC if it doesn't say).",
        ),
    ] = None,
) -> int:
    """Start no run of a task in the whole cluster.

    Until the time given, or until it is resumed. What runs already goes on.
    """
    await console.desk.pause(name, None if until is None else options.moment(until, "--until"))
    paused_until = (await console.controls.all())[name].paused_until
    assert paused_until is not None  # just set
    out.show(
        lambda _screen: f"{name} is paused {until_words(paused_until)}",
        {"task": name, "paused_until": paused_until},
    )
    return OK


@on_console
async def resume(console: Console, out: Output, *, name: Name) -> int:
    """Let a paused or throttled task run again."""
    await console.desk.resume(name)
    out.show(lambda _screen: f"{name} runs again", {"task": name, "paused_until": None})
    return OK


COMMANDS: Mapping[str, Callable[..., int]] = {
    "list": list_,
    "show": show,
    "retry": retry,
    "delete": delete,
    "pause": pause,
    "resume": resume,
}


def record_filter(
    task: list[str] | None = None,
    status: list[str] | None = None,
    source_doc_filter: str | None = None,
    error_message: str | None = None,
    has_error: bool | None = None,
    ids: list[str] | None = None,
) -> RecordFilter:
    """Which records the options mean. An option that is not given is None, or an empty list."""
    from oplogue.runtime.desk import record_filter as meant
    from oplogue.store.extended_json import read_id, read_json

    query: Any = None
    if source_doc_filter is not None:
        expected = """a query in extended JSON, such as '{"status": "paid"}'"""
        query = read_json(source_doc_filter, option="--source-doc-filter", expected=expected)
    wanted = [read_id(text, option="--id") for text in ids or ()]
    return meant(task or None, status or None, query, error_message, has_error, wanted or None)


async def _change(
    console: Console,
    out: Output,
    which: RecordFilter,
    words: tuple[str, str],
    change: Callable[[RecordFilter, Progress], Awaitable[int]],
    dry_run: bool,
    yes: bool,
) -> int:
    """Count, ask, and do it."""
    verb, done = words
    count = await console.desk.count(which)
    changed = 0
    if count and not dry_run:
        # Whoever names records by their ids has chosen already.
        if not out.confirm(f"{verb} {count_of(count, 'record')}?".capitalize(), yes=yes or bool(which.ids)):
            out.note("Nothing was changed.")
            return WRONG
        with out.progress(verb, count) as progress:
            changed = await change(which, progress)
    would = (
        f"would {verb} {count_of(count, 'record')}" if dry_run else f"{done} {count_of(changed, 'record')}"
    )
    out.show(lambda _screen: would, {"matched": count, done: changed, "dry_run": dry_run})
    return OK


def _check_meant(which: RecordFilter, every: bool) -> None:
    parts = (
        which.tasks,
        which.statuses,
        which.ids,
        which.source_doc_filter,
        which.error_message,
        which.has_error,
    )
    if not every and all(part is None for part in parts):
        raise ConfigurationError(
            "it is not said which records are meant", expected="a filter such as --task or --status, or --all"
        )


def _usual_order(statuses: list[str] | None) -> list[str]:
    waiting = {"pending", "processing", "processing_dirty"}
    return ["next_run_at"] if statuses and set(statuses) <= waiting else ["-last_finalized_at"]
