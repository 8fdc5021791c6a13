"""The connection: clients, the concerns of every operation of ours, and bounds on how long one may take.

What the engine reads and writes must not depend on how the user's client is set up: primary reads, majority
writes, dates that may be out of Python's range, and a bound on each operation, set one by one — a client-wide
``timeoutMS`` would kill a waiting stream and bind the user's own code too.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pymongo
from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.driver_info import DriverInfo
from pymongo.errors import ConfigurationError as DriverConfigurationError
from pymongo.errors import InvalidURI
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from oplogue.errors import ConfigurationError
from oplogue.model.definition import Namespace, check_database

Document = dict[str, Any]
Collection = AsyncCollection[Document]
Client = AsyncMongoClient[Document]
Database = AsyncDatabase[Document]
BlockingClient = MongoClient[Document]

_URI = "mongodb://host:27017/database"
MAJORITY = WriteConcern("majority")
FIRE_AND_KNOW = WriteConcern(1)

PLAIN: CodecOptions[Document] = CodecOptions(
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    # An id that is no text must not kill the stream, again on every restart.
    unicode_decode_error_handler="replace",
)
"""How the planner reads ids, from the stream and from collections alike: whatever the user's codec makes of them,
the same id must look the same."""

# With the driver's defaults a frozen primary costs 28 s; with these 2 s.
_OURS: dict[str, Any] = {
    "heartbeatfrequencyms": 1000,
    "connecttimeoutms": 2000,
    "serverselectiontimeoutms": 10_000,
    "appname": "oplogue",
}


def check_uri(uri: str) -> str | None:
    """The database that a URI names, if any; ConfigurationError for one that can't be read."""
    if not isinstance(uri, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users' input
        raise ConfigurationError("not a text", option="uri", value=uri, expected=_URI)
    try:
        return parse_uri(uri, validate=True, warn=False, connect_timeout=2)["database"]
    except (InvalidURI, DriverConfigurationError, ValueError) as error:
        raise ConfigurationError(
            str(error), option="uri", value=_without_password(uri), expected=_URI
        ) from None


def uri_or_environment(uri: str | None) -> str | None:
    """The URI that was given, or that of the environment."""
    if uri is not None:
        return uri
    return os.environ.get("OPLOGUE_MONGODB_URI") or os.environ.get("MONGODB_URI")


def database_name(uri: str | None, client: Client | None, database: str | None) -> str:
    """The database that is worked in; ConfigurationError where nothing names one."""
    if uri is None and client is None:
        raise ConfigurationError(
            "no server", option="uri", expected="mongodb://host/database, here or in OPLOGUE_MONGODB_URI"
        )
    of_client = None if client is None else _database_of(client)
    of_uri = None if uri is None else check_uri(uri)
    name = database if database is not None else of_uri or of_client
    if name is None:
        raise ConfigurationError(
            "no database's name", option="database", expected="a name in the URI's path, or here: 'shop'"
        )
    return check_database(name, option="database")


def _database_of(client: Client) -> str | None:
    """The database that a client's own URI names, if any; ConfigurationError for what is no such client."""
    if not isinstance(client, AsyncMongoClient):  # pyright: ignore[reportUnnecessaryIsInstance] - users' input
        raise ConfigurationError(
            "of the wrong type", option="client", value=client, expected="a pymongo.AsyncMongoClient"
        )
    try:
        return client.get_default_database().name
    except DriverConfigurationError:
        return None


def make_client(uri: str) -> Client:
    """An asynchronous client; what the URI says wins over our settings."""
    return AsyncMongoClient(uri, **_settings(uri), driver=DriverInfo("oplogue"))


def make_blocking_client(uri: str) -> BlockingClient:
    """A client for the thread that renews leases: one connection is enough."""
    settings: dict[str, Any] = {**_settings(uri), "maxpoolsize": 2}
    return MongoClient[Document](uri, **settings, driver=DriverInfo("oplogue"))


async def check_server(client: Client, *, bound: timedelta) -> None:
    """ConfigurationError for a server without change streams: one that is no member of a replica set."""
    with bounded(bound):
        hello = await client.admin.command("hello")
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise ConfigurationError(
            "the server is not a member of a replica set, and has no change streams",
            option="uri",
            expected="a replica set; one member will do: mongod --replSet rs0, then rs.initiate()",
        )


def bounded(limit: timedelta) -> AbstractContextManager[Any]:
    """A bound for the operations inside, retries included."""
    return pymongo.timeout(limit.total_seconds())


def ours(client: Client, namespace: Namespace, *, acknowledge: WriteConcern = MAJORITY) -> Collection:
    """A collection read and written as the engine needs it, whatever the user's client defaults to."""
    return client.get_database(namespace.database).get_collection(
        namespace.collection,
        codec_options=codec(client),
        read_preference=ReadPreference.PRIMARY,
        write_concern=acknowledge,
        read_concern=ReadConcern("local"),
    )


def codec(client: Client) -> CodecOptions[Document]:
    """The client's codec, so that user data decode as the user set it; but nothing in one document may keep others
    from being read: dates out of range and what is no Unicode don't raise."""
    return client.codec_options.with_options(
        document_class=dict,
        datetime_conversion=DatetimeConversion.DATETIME_AUTO,
        unicode_decode_error_handler="replace",
    )


def _settings(uri: str) -> dict[str, Any]:
    said = {name.lower() for name in parse_uri(uri, validate=False, warn=False)["options"]}
    return {name: value for name, value in _OURS.items() if name not in said}


def _without_password(uri: str) -> str:
    head, at, tail = uri.rpartition("@")
    return f"{head.split('//')[0]}//…@{tail}" if at else uri
