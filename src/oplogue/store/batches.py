"""Walking through a collection in batches of one's own."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from oplogue.store.connection import Collection, Document

Item = TypeVar("Item")
Transform = Callable[[Document], Item | Sequence[Item] | Awaitable[Item | Sequence[Item] | None] | None]
Execute = Callable[[list[Item]], Awaitable[Any] | Any]


async def process_in_batches(
    collection: Collection,
    selection: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    transform: Transform[Item],
    execute: Execute[Item],
    batch_size: int,
) -> int:
    """Transform each document into one item, several or none, and execute them in batches; how many items."""
    if isinstance(selection, Mapping):
        cursor: Any = collection.find(selection)
    else:
        cursor = await collection.aggregate(list(selection))
    batch: list[Item] = []
    count = 0
    async with cursor:
        async for document in cursor:
            batch.extend(await _items(transform, document))
            while len(batch) >= batch_size:
                count += await _run(execute, batch[:batch_size])
                del batch[:batch_size]
    return count + (await _run(execute, batch) if batch else 0)


async def _items(transform: Transform[Item], document: Document) -> list[Item]:
    made: Any = transform(document)
    if inspect.isawaitable(made):
        made = await made
    if made is None:
        return []
    return list(made) if isinstance(made, list) else [made]  # type: ignore[arg-type]  # the item's own type


async def _run(execute: Execute[Item], batch: list[Item]) -> int:
    answer = execute(batch)
    if inspect.isawaitable(answer):
        await answer
    return len(batch)
