"""Small words for building server-side expressions, so that pipelines read as what they do.

User data is never evaluated: whatever comes from a document, a handler or a definition goes through `literal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from oplogue.model.states import RUNNING

Expr = Any
"""An aggregation expression."""

NOW = "$$NOW"
CLUSTER_TIME = "$$CLUSTER_TIME"
REMOVE = "$$REMOVE"
ROOT = "$$ROOT"
MARKS: Expr = {"$cond": [{"$eq": [{"$type": "$oplogue"}, "object"]}, "$oplogue", {}]}
"""What we keep beside the fields of the seeds; empty where it is missing, or was edited into something else."""
IS_RUNNING: Expr = {"$in": ["$status", list(RUNNING)]}


def literal(value: Any) -> Expr:
    """The value itself, whatever it looks like."""
    return {"$literal": value}


def when(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    """One of two values."""
    return {"$cond": [condition, then, otherwise]}


def first_set(*values: Expr) -> Expr:
    """The first that is neither null nor missing."""
    return {"$ifNull": list(values)}


def merged(*parts: Expr) -> Expr:
    """Documents laid over each other, the last on top."""
    return {"$mergeObjects": list(parts)}


def after(moment: Expr, milliseconds: Expr) -> Expr:
    """A date, so many milliseconds later."""
    return {"$add": [moment, milliseconds]}


def milliseconds(duration: timedelta) -> int:
    """Whole milliseconds, the server's unit of dates."""
    return duration // timedelta(milliseconds=1)


def is_set(field: str) -> Expr:
    """Whether a mark is there and true."""
    return {"$eq": [field, True]}


class Table:
    """Values by key, looked up on the server: row constants of one statement over many records.

    With one key the lookup folds into the constant itself.
    """

    def __init__(self, key: Expr, rows: Iterable[tuple[Any, Mapping[str, Any]]]) -> None:
        # Pairs, not a dictionary: keys are compared as the server compares them, and need no hash.
        pairs = list(rows)
        self._key = key
        self._keys = [known for known, _ in pairs]
        self._rows = [dict(row) for _, row in pairs]

    def row(self) -> Expr:
        """The row of this record: for the ``vars`` of a `$let`, named ``row``."""
        return {
            "$arrayElemAt": [
                literal(self._rows),
                {"$indexOfArray": [literal(self._keys), self._key]},
            ]
        }

    def get(self, column: str) -> Expr:
        """One column of this record's row."""
        if len(self._rows) == 1:
            return literal(self._rows[0][column])
        return f"$$row.{column}"

    def bind(self, expression: Expr) -> Expr:
        """The expression with its row at hand."""
        if len(self._rows) == 1:
            return expression
        return {"$let": {"vars": {"row": self.row()}, "in": expression}}
