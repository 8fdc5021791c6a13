"""Random filters over random documents: what is planned against what ``find`` finds, pair by pair."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import bson
from bson import Decimal128
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure
from tests.support.queries import AnyFilter, AnyProjection, documents, filters, projections
from tests.support.rig import Document, Rig

DOCUMENTS, TASKS, GENERATIONS = 20, 25, 2


@dataclass(frozen=True)
class Trigger:
    """What one random task looks for and watches."""

    filter: AnyFilter
    projection: AnyProjection


triggers = st.lists(st.builds(Trigger, filters, projections), min_size=TASKS, max_size=TASKS)
generations = st.lists(
    st.lists(documents, min_size=DOCUMENTS, max_size=DOCUMENTS), min_size=GENERATIONS, max_size=GENERATIONS
)


@dataclass
class Tally:
    """How much was compared: a test that compares nothing proves nothing."""

    pairs: int = 0
    matches: int = 0
    refused: int = 0


def compare_pairs(uri: str, pairs: int, chosen: int) -> Tally:
    """Compare at least so many pairs of a filter and a document, those of a seed; AssertionError names the first
    that differs."""
    tally = Tally()
    examples = max(1, -(-pairs // (DOCUMENTS * TASKS * GENERATIONS)))
    with asyncio.Runner() as runner:
        client = AsyncMongoClient[Document](uri, tz_aware=True)
        rig = Rig(client, client.get_default_database())
        runner.run(rig.records.ensure_indexes())

        # A failure names the one filter and the one document: there is nothing to shrink.
        @seed(chosen)
        @settings(max_examples=examples, phases=[Phase.generate], **_UNHURRIED)
        @given(triggers, generations)
        def compare(some: list[Trigger], generations: list[list[Document]]) -> None:
            runner.run(_compare(rig, tally, some, generations))

        try:
            compare()
        except BaseException as error:
            error.add_note(f"seed {chosen}, {pairs} pairs")
            raise
        finally:
            runner.run(rig.close())
            runner.run(client.close())
    assert tally.pairs >= pairs
    assert tally.pairs * 0.05 < tally.matches < tally.pairs * 0.95
    assert tally.refused * DOCUMENTS < tally.pairs * 0.1
    return tally


_UNHURRIED: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


async def _compare(
    rig: Rig, tally: Tally, some: Sequence[Trigger], generations: Sequence[Sequence[Document]]
) -> None:
    """Plan each generation of the documents for all tasks in one statement, and compare every pair."""
    await rig.rows.delete_many({})
    known: dict[tuple[int, int], Any] = {}
    sound = await _accepted(rig, tally, some)
    tasks = [rig.task(str(n), filter=one.filter.raw, watch=one.projection.raw) for n, one in sound.items()]
    for generation in generations:
        await rig.documents.delete_many({})
        await rig.documents.insert_many([{"_id": n, **fields} for n, fields in enumerate(generation)])
        if tasks:
            await rig.plan(*tasks, ids=range(len(generation)))
        planned = {(int(row["task"]), row["sourceDocId"]): row for row in await rig.all_rows()}
        expected = await _expected(rig, sound)
        for number, one in sound.items():
            for id_, fields in enumerate(generation):
                pair = number, id_
                tally.pairs += 1
                tally.matches += pair in expected
                with _named(one, fields):
                    _check(planned.get(pair), expected, pair, known)
        assert not planned.keys() - known.keys() - expected.keys()
        known |= expected


def _check(
    row: Document | None,
    expected: dict[tuple[int, int], Any],
    pair: tuple[int, int],
    known: dict[tuple[int, int], Any],
) -> None:
    if pair not in expected and pair not in known:
        assert row is None, "planned, but not found"
    elif pair not in expected:
        assert row is not None, "its record is gone"
        assert row["oplogue"].get("left") is True, "left the filter, and is not marked so"
        assert _same(row["lastObservedValues"], known[pair])
    else:
        assert row is not None, "found, but not planned"
        assert not row["oplogue"].get("left"), "marked as left, but found"
        assert _same(row["lastObservedValues"], expected[pair]), (
            f"{row['lastObservedValues']} {expected[pair]}"
        )
        if pair not in known:
            assert bson.encode({"": row["lastObservedValues"]}) == bson.encode({"": expected[pair]})


async def _accepted(rig: Rig, tally: Tally, some: Sequence[Trigger]) -> dict[int, Trigger]:
    """Those whose filter the server takes at all."""
    sound: dict[int, Trigger] = {}
    now = await rig.now()
    for number, one in enumerate(some):
        try:
            await rig.documents.find_one(one.filter.for_find(now))
            sound[number] = one
        except OperationFailure:
            tally.refused += 1
    return sound


async def _expected(rig: Rig, some: dict[int, Trigger]) -> dict[tuple[int, int], Any]:
    """By (task, document), the watched values of what ``find`` finds."""
    values: dict[str, dict[Any, Any]] = {}
    now = await rig.now()
    expected: dict[tuple[int, int], Any] = {}
    for number, one in some.items():
        expression = one.projection.expression
        if repr(expression) not in values:
            shown = [{"$replaceWith": {"k": "$_id", "v": expression}}]
            rows = await (await rig.documents.aggregate(shown)).to_list()
            values[repr(expression)] = {row["k"]: row["v"] for row in rows}
        async for found in rig.documents.find(one.filter.for_find(now), {"_id": 1}):
            expected[number, found["_id"]] = values[repr(expression)][found["_id"]]
    return expected


@contextmanager
def _named(one: Trigger, fields: Document) -> Generator[None]:
    try:
        yield
    except AssertionError as error:
        error.add_note(f"filter {one.filter.raw!r}, watched {one.projection.raw!r}, document {fields!r}")
        raise


def _same(value: Any, other: Any) -> bool:
    """Equal as the server has it: numbers by value, whatever their type; NaN is NaN."""
    return bson.encode({"": _plain(value)}) == bson.encode({"": _plain(other)})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items()}  # pyright: ignore
    if isinstance(value, list):
        return [_plain(member) for member in value]  # pyright: ignore
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return float(value.to_decimal()) if isinstance(value, Decimal128) else value
