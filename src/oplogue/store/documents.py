"""Source documents, read through a task's condition: existence, filter and watched values in one atomic look."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import bson
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection

from oplogue.errors import ConfigurationError
from oplogue.model.canonical import ordered_like
from oplogue.model.definition import Namespace, TaskDefinition
from oplogue.model.filters import OPTION as FILTER
from oplogue.model.projection import OPTION as WATCHED
from oplogue.store.connection import Client, Collection, Document, bounded, codec, ours
from oplogue.store.expressions import ROOT, literal
from oplogue.store.faults import OperationFailure, describe, is_refusal
from oplogue.store.fields import aware

# Values that one codec decoded are compared as bytes: as which bytes does not matter, but native UUIDs need a choice.
_COMPARED: CodecOptions[Document] = CodecOptions(uuid_representation=UuidRepresentation.STANDARD)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look found: the watched values, and the document where it was asked for."""

    values: dict[str, Any]
    document: Document | None = None

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether the watched values are still those."""
        return same_values(self.values, values)


class SourceDocuments:
    """The documents of one source collection, for the runs of its tasks."""

    def __init__(self, client: Client, source: Namespace, *, bound: timedelta) -> None:
        self._client = client
        self._documents: Collection = ours(client, source)
        self._theirs: Collection = self._documents.with_options(codec_options=client.codec_options)
        undecoded = codec(client).with_options(document_class=RawBSONDocument)
        self._bytes: AsyncCollection[RawBSONDocument] = self._documents.with_options(codec_options=undecoded)
        self._bound = bound

    async def check(self, definition: TaskDefinition) -> None:
        """What only the server can say of a collection, a filter and watched values: ConfigurationError."""
        await self._check_kind(definition)
        match = definition.filter.match(await self._now(definition))
        watched = definition.projection.expression
        await self._try({"$match": match}, definition, FILTER, definition.filter.raw, "what $match takes")
        await self._try(
            {"$replaceWith": {"v": watched}}, definition, WATCHED, watched, "an aggregation expression"
        )

    async def _check_kind(self, definition: TaskDefinition) -> None:
        """Documents that the change stream says nothing of would be planned once, and never again."""
        named = {"name": definition.source.collection}
        with bounded(self._bound):
            found = await self._documents.database.list_collections(
                filter=named, nameOnly=True, authorizedCollections=True
            )
            kinds = [collection["type"] async for collection in found]
        if kinds and kinds != ["collection"]:
            raise ConfigurationError(
                f"a {kinds[0]}: the server tells no changes of its documents",
                option="collection",
                value=str(definition.source),
                expected="a collection, such as the one that it is made from",
                task=definition.task,
            )

    async def _try(
        self, stage: Document, definition: TaskDefinition, option: str, value: object, expected: str
    ) -> None:
        try:
            with bounded(self._bound):
                await self._documents.aggregate([{"$match": {"_id": {"$in": []}}}, stage])
        except OperationFailure as error:
            if not is_refusal(error):
                raise
            raise ConfigurationError(
                f"the server refuses it: {describe(error)}",
                option=option,
                value=value,
                expected=expected,
                task=definition.task,
            ) from error

    async def look(
        self, definition: TaskDefinition, ids: Sequence[Any], *, with_document: bool, as_theirs: bool = False
    ) -> dict[Any, Seen]:
        """Those of the documents that exist and match, by key: one round trip for many claimed records.

        ``as_theirs``: decoded just as the user's client decodes.
        """
        whole = definition.projection.whole_document
        shown: dict[str, Any] = {"k": "$_id"}
        if whole or with_document:
            shown["d"] = ROOT
        if not whole:
            shown["v"] = definition.projection.expression
        now = await self._now(definition)
        pipeline = [
            {"$match": {"_id": {"$in": list(ids)}}},
            {"$match": definition.filter.match(now)},
            {"$replaceWith": shown},
        ]
        with bounded(self._bound):
            documents = self._theirs if as_theirs else self._documents
            rows = await (await documents.aggregate(pipeline)).to_list()
        return {
            key_of(row["k"]): Seen(row["d"] if whole else row["v"], row.get("d") if with_document else None)
            for row in rows
        }

    @property
    def can_be_read_together(self) -> bool:
        """Whether `look` can give documents as the user's client would: not where it makes its own of them."""
        return self._client.codec_options.document_class is dict

    async def fetch(
        self,
        definition: TaskDefinition,
        id_: Any,
        values: Mapping[str, Any],
        *,
        session: AsyncClientSession | None = None,
        **options: Any,
    ) -> Document | None:
        """The document, if it exists, matches, and its watched values are those."""
        expected: Any = dict(values)
        match = definition.filter.match(await self._now(definition))
        watched = ordered_like(definition.projection.expression, values)

        async def find() -> Document | None:
            same = {"$eq": [watched, literal(expected)]}
            condition = {"_id": id_, "$and": [match, {"$expr": same}]}
            return await self._theirs.find_one(condition, session=session, **options)

        found = await find()
        if found is None:
            # Not every value is sent as it came: DBRefs, what is no Unicode, the types of a user's codec.
            exact = await self._values(watched, id_, session)
            if exact is not None and same_values(self._decoded(exact), values):
                expected = exact
                found = await find()
        return found

    async def _values(
        self, watched: object, id_: Any, session: AsyncClientSession | None
    ) -> RawBSONDocument | None:
        """The watched values of a document, as the bytes that they are."""
        shown = {"$replaceWith": {"v": watched}}
        with bounded(self._bound):
            cursor = await self._bytes.aggregate([{"$match": {"_id": id_}}, shown], session=session)
            rows = await cursor.to_list()
        return rows[0]["v"] if rows else None

    def _decoded(self, values: RawBSONDocument) -> Document:
        return bson.BSON(values.raw).decode(self._documents.codec_options)

    async def _now(self, definition: TaskDefinition) -> datetime | None:
        return await server_time(self._client, bound=self._bound) if definition.filter.needs_now else None


async def collation_of(client: Client, source: Namespace, *, bound: timedelta) -> dict[str, Any] | None:
    """How the collection compares texts where it is not to the letter."""
    with bounded(bound):
        database = client.get_database(source.database)
        found = await (await database.list_collections(filter={"name": source.collection})).to_list()
    return next((dict(one["options"]["collation"]) for one in found if "collation" in one["options"]), None)


async def server_time(client: Client, *, bound: timedelta) -> datetime:
    """The server's clock."""
    with bounded(bound):
        answer = await client.admin.command("hello")
    return aware(answer["localTime"])


def key_of(id_: Any) -> Any:
    """A dictionary key that is equal where the server finds two ids equal, for all usual ids.

    Python finds ``True`` and ``1`` equal where the server does not, and NaN different from itself; documents and
    binaries aren't hashable.
    """
    if isinstance(id_, bool):
        return ("bool", id_)
    number = id_.to_decimal() if isinstance(id_, bson.Decimal128) else id_
    if isinstance(number, (float, Decimal)) and not math.isfinite(number):
        # "nan", "inf" or "-in", of a double and of a decimal.
        return ("not finite", str(number)[:3].lower())
    # Code is a text that can't be hashed.
    if isinstance(number, (str, int, float, Decimal, bson.ObjectId)) and not isinstance(number, bson.Code):
        return number
    return _bytes_of({"": id_})


def same_values(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two documents of watched values are the same state.

    Compared as Python first, then as bytes: NaN is not equal to itself, and a record that holds one would be
    planned for ever. Where this finds two values alike that the server tells apart (1 and True), the planner's
    own comparison has marked the record already.
    """
    return one == other or _bytes_of(one) == _bytes_of(other)


def _bytes_of(document: Mapping[str, Any]) -> bytes:
    try:
        return bson.encode(document, codec_options=_COMPARED)
    except BSONError:  # Types of the user's codec.
        return repr(document).encode("utf-8", "surrogatepass")
