"""What all instances together have counted, ever: one document in the globals collection that only grows.

Each instance adds what it has counted since it last did, so an instance that left, died or was started again takes
nothing away, and the document does not grow with their number. An addition is numbered, and the last numbers are
kept beside the sums: one whose answer was lost is sent again, and counts once.

A series' values are keys of the document: dots and dollars in task names are escaped.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_left
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from bson import ObjectId
from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from oplogue.model.definition import Namespace
from oplogue.model.figures import Figures, Histogram, Series
from oplogue.model.metrics import METRICS
from oplogue.store.connection import Client, Collection, Document, bounded, ours
from oplogue.store.fields import document_in

_ID = "figures"
_REMEMBERED = 500
"""How many additions are told from new ones: those of some seconds even with hundreds of instances."""
_SEPARATOR = "|"
_ESCAPED = re.compile(r"[%.$|\x00]")
_SUM = "sum"


class Totals:
    """The sums of one globals collection, and this instance's additions to them."""

    def __init__(self, client: Client, globals_: Namespace, *, bound: timedelta) -> None:
        self._globals: Collection = ours(client, globals_)
        self._bound = bound
        self._author = ObjectId()

    async def add(self, figures: Figures, number: int) -> Figures:
        """Add these once, however often they are sent with this number; the sums after that."""
        name = f"{self._author}-{number}"
        added = await self._add(figures, name)
        if added is None:
            # There is no such document yet, or this was added before.
            with contextlib.suppress(DuplicateKeyError), bounded(self._bound):
                await self._globals.insert_one({"_id": _ID, "series": {}, "added": []})
            added = await self._add(figures, name)
        return await self.read() if added is None else _figures(added)

    async def _add(self, figures: Figures, name: str) -> Document | None:
        update = {
            "$inc": _increments(figures),
            "$push": {"added": {"$each": [name], "$slice": -_REMEMBERED}},
        }
        with bounded(self._bound):
            return await self._globals.find_one_and_update(
                {"_id": _ID, "added": {"$ne": name}},
                update,
                projection={"series": 1},
                return_document=ReturnDocument.AFTER,
            )

    async def read(self) -> Figures:
        """The sums."""
        with bounded(self._bound):
            document = await self._globals.find_one({"_id": _ID}, {"series": 1})
        return _figures(document or {})


def _increments(figures: Figures) -> dict[str, float]:
    increments: dict[str, float] = {}
    for series, value in figures.counters.items():
        increments[f"series.{_key(series)}"] = value
    for series, histogram in figures.histograms.items():
        path = f"series.{_key(series)}"
        for bound, count in zip((*histogram.bounds, "inf"), histogram.counts, strict=True):
            if count:
                increments[f"{path}.{_escaped(str(bound))}"] = count
        increments[f"{path}.{_SUM}"] = histogram.sum
    return increments


def _figures(document: Mapping[str, Any]) -> Figures:
    """Sums as they were stored, by this version or another; what can't be read is left out."""
    figures = Figures()
    for key, value in document_in(document.get("series")).items():
        series = _series(key)
        metric = METRICS.get(series[0])
        if metric is None or len(series) != len(metric.labels) + 1:
            continue
        if metric.bounds:
            figures.histograms[series] = _histogram(metric.bounds, document_in(value))
        elif isinstance(value, (int, float)):
            figures.counters[series] = value
    return figures


def _histogram(bounds: tuple[float, ...], stored: Mapping[str, Any]) -> Histogram:
    """Counts under bounds that this version does not have fall into the next bucket."""
    histogram = Histogram(bounds, total=stored.get(_SUM, 0.0))
    for key, count in stored.items():
        if key != _SUM:
            histogram.counts[bisect_left(bounds, float(_unescaped(key)))] += int(count)
    return histogram


def _key(series: Series) -> str:
    return _SEPARATOR.join(map(_escaped, series))


def _series(key: str) -> Series:
    return tuple(map(_unescaped, key.split(_SEPARATOR)))


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02x}", text)


def _unescaped(text: str) -> str:
    return re.sub("%([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), text)
