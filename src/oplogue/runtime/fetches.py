"""Documents that handlers ask for: those asked for at the same moment are read in one query.

A thousand handlers that each fetch their document would be a thousand round trips. They start together, so their
questions are collected until the loop has come round, and sent as one; while a few such queries are under way,
further questions wait for the next. Each question is answered by a read that began after it was asked.

One that is alone, and each of a group that could not be read together (a document may be more than the driver or an
expression can take), is left to its handler: it asks by itself, and gets its own error.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any, Literal

from oplogue.model.definition import TaskDefinition
from oplogue.model.record import ClaimedRecord
from oplogue.store.documents import SourceDocuments, key_of

_MOST_AT_ONCE = 1_000
_MOST_UNDER_WAY = 4

Answer = dict[str, Any] | None | Literal["alone"]


@dataclass(frozen=True, slots=True)
class _Question:
    record: ClaimedRecord
    answer: asyncio.Future[Answer]


class Fetches:
    """The questions of one collection's handlers."""

    def __init__(self, documents: SourceDocuments) -> None:
        self._documents = documents
        self._asked: dict[str, deque[_Question]] = defaultdict(deque)
        self._under_way: dict[str, int] = defaultdict(int)
        self._reads: set[asyncio.Task[None]] = set()

    async def ask(self, definition: TaskDefinition, record: ClaimedRecord) -> Answer:
        """The document if it meets the record's condition, None if it does not; ``alone``: ask by yourself."""
        if not self._documents.can_be_read_together:
            return "alone"
        question = _Question(record, asyncio.get_running_loop().create_future())
        asked = self._asked[definition.task]
        asked.append(question)
        if len(asked) == 1:
            self._read_soon(definition)
        return await question.answer

    def _read_soon(self, definition: TaskDefinition) -> None:
        if self._under_way[definition.task] < _MOST_UNDER_WAY:
            self._under_way[definition.task] += 1
            # Not in the context of the handler that happened to ask first: its time limits are its own.
            loop, context = asyncio.get_running_loop(), contextvars.Context()
            loop.call_soon(self._begin, definition, context=context)

    def _begin(self, definition: TaskDefinition) -> None:
        asked = self._asked[definition.task]
        group = [asked.popleft() for _ in range(min(len(asked), _MOST_AT_ONCE))]
        read = asyncio.get_running_loop().create_task(self._read(definition, group))
        self._reads.add(read)
        read.add_done_callback(self._reads.discard)
        if asked:
            self._read_soon(definition)

    async def _read(self, definition: TaskDefinition, group: list[_Question]) -> None:
        answers: list[Answer] = ["alone"] * len(group)
        try:
            if len(group) > 1:
                answers = await self._read_together(definition, group)
        except Exception:  # noqa: BLE001 - whatever it is, those whom it concerns meet it when they ask alone
            answers = ["alone"] * len(group)
        finally:
            self._under_way[definition.task] -= 1
            for question, answer in zip(group, answers, strict=True):
                if not question.answer.done():
                    question.answer.set_result(answer)
            if self._asked[definition.task]:
                self._read_soon(definition)

    async def _read_together(self, definition: TaskDefinition, group: list[_Question]) -> list[Answer]:
        ids = [question.record.doc_id for question in group]
        seen = await self._documents.look(definition, ids, with_document=True, as_theirs=True)
        answers: list[Answer] = []
        for question in group:
            found = seen.get(key_of(question.record.doc_id))
            holds = found is not None and found.holds(question.record.values)
            answers.append(found.document if found is not None and holds else None)
        return answers
