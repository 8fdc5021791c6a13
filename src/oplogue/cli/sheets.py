"""Task records on the screen: a list that fits it, and all that is known of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oplogue.cli.wording import ago, count_of, stamp
from oplogue.model.record import Page, TaskRecord
from oplogue.model.states import RUNNING, Status
from oplogue.store.extended_json import write_id, write_json

_COLOURS = {
    Status.PENDING: "yellow",
    Status.PROCESSING: "cyan",
    Status.PROCESSING_DIRTY: "cyan",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
}
_LARGEST_ID = 36
_LEAST = 8
_ROOM_FOR_ERRORS = 80
"""Columns after the others that a state and a readable part of an error take."""
_GAP = "  "


def page_list(page: Page, now: datetime, *, skip: int, width: int) -> RenderableType:
    """A list of records, a line each; where errors have no room in it, they have lines of their own."""
    rows = [_Row.of(record, now) for record in page.items]
    columns = _columns(rows, width)
    used = sum(columns) + len(_GAP) * len(columns)
    beside = width - used >= _ROOM_FOR_ERRORS
    lines: list[Text] = [_line_of(_Row("record", "task", "document", Text("state")), columns, dim=True)]
    for row in rows:
        line = _line_of(row, columns)
        if row.trouble is None:
            lines.append(line)
        elif beside:
            lines.append(line.append(", ").append(row.trouble))
        else:
            lines += [line, Text("  ").append(row.trouble)]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    shown = f"{skip + 1:,}–{skip + len(page.items):,} of " if len(page.items) < page.total else ""
    return Group(*lines, Text(f"{shown}{count_of(page.total, 'record')}", style="dim"))


@dataclass(frozen=True, slots=True)
class _Row:
    id: str
    task: str
    document: str
    state: Text
    trouble: Text | None = None

    @staticmethod
    def of(record: TaskRecord, now: datetime) -> _Row:
        trouble = None
        if record.last_error is not None:
            trouble = Text(f"{count_of(record.attempts, 'attempt')}: ").append(
                _line(record.last_error), "red"
            )
        return _Row(
            write_id(record.id), record.task, write_id(record.source_doc_id), _state(record, now), trouble
        )


def _columns(rows: Sequence[_Row], width: int) -> tuple[int, int, int]:
    """Widths of id, task and document. An id is never cut: it is what is copied."""
    id_, task, document = (
        max([len(heading), *(len(getattr(row, name)) for row in rows)])
        for heading, name in (("record", "id"), ("task", "task"), ("document", "document"))
    )
    state = max([len("state"), *(len(row.state) for row in rows)])
    document = min(document, _LARGEST_ID)
    missing = id_ + task + document + state + 3 * len(_GAP) - width
    for _ in range(max(missing, 0)):
        if document >= task and document > _LEAST:
            document -= 1
        elif task > _LEAST:
            task -= 1
    return id_, task, document


def _line_of(row: _Row, columns: tuple[int, int, int], *, dim: bool = False) -> Text:
    line = Text(style="dim" if dim else "")
    for cell, width in zip((row.id, row.task, row.document), columns, strict=True):
        text = Text(cell)
        text.truncate(width, overflow="ellipsis", pad=True)
        line.append(text).append(_GAP)
    return line.append(row.state)


def record_sheet(record: TaskRecord, now: datetime) -> RenderableType:
    """Everything of one record."""
    sheet = Table.grid(padding=(0, 2))
    sheet.add_column(style="dim", no_wrap=True)
    sheet.add_column(overflow="fold")
    for name, value in _facts(record, now):
        sheet.add_row(name, value)
    parts: list[RenderableType] = [sheet]
    if record.execution_history:
        parts += [Text(), _history(record)]
    return Group(*parts)


def _state(record: TaskRecord, now: datetime) -> Text:
    text = Text(record.status, style=_COLOURS[record.status])
    if record.status is Status.PENDING:
        text.append(f" {'due ' if record.next_run_at else ''}{ago(record.next_run_at, now)}", "default")
    elif record.status in RUNNING:
        text.append(f" since {ago(record.started_at, now)}", "default")
    else:
        text.append(f" {ago(record.last_finalized_at, now)}", "default")
    return text


def _facts(record: TaskRecord, now: datetime) -> list[tuple[str, RenderableType]]:
    def when(moment: datetime | None) -> str:
        return stamp(moment) + (f"  ({ago(moment, now)})" if moment is not None else "")

    values = record.last_observed_values
    success = record.last_success
    facts: list[tuple[str, RenderableType]] = [
        ("record", write_id(record.id)),
        ("task", record.task),
        ("document", f"{write_id(record.source_doc_id)} in {record.collection}"),
        ("status", Text(record.status, style=_COLOURS[record.status])),
        ("attempts", f"{record.attempts}"),
        ("lease ends" if record.status in RUNNING else "next run", when(record.next_run_at)),
        ("due", when(record.due_at)),
        ("last error", Text(record.last_error or "–", style="red" if record.last_error else "")),
        ("first error", when(record.first_error_at)),
        ("last success", "–" if success is None else f"{when(success.at)}, took {success.duration_ms:,} ms"),
        ("started", when(record.started_at)),
        ("completed", when(record.completed_at)),
        ("last ended", when(record.last_finalized_at)),
        ("data changed", when(record.updated_at)),
        ("created", when(record.created_at)),
        ("watched values", Text("–" if values is None else write_json(values, indent=2))),
    ]
    return [(name, Text(fact) if isinstance(fact, str) else fact) for name, fact in facts]


def _history(record: TaskRecord) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("last runs", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("error", overflow="fold")
    for entry in reversed(record.execution_history):
        table.add_row(
            stamp(entry.at),
            Text(entry.status, style=_COLOURS[entry.status]),
            f"{entry.duration_ms:,} ms",
            Text(entry.error or ""),
        )
    return table


def _line(text: str) -> str:
    return " ".join(text.split())


def page_document(page: Page, *, limit: int, skip: int) -> dict[str, object]:
    """The same list for a program."""
    items: Sequence[TaskRecord] = page.items
    return {"total": page.total, "skip": skip, "limit": limit, "items": items}
