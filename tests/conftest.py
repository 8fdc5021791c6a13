"""Fixtures on a real replica set. Each test has a database of its own; the session shares the servers."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.database import AsyncDatabase

from oplogue.embedded import EmbeddedServer, start_embedded

Document = dict[str, Any]

TEST_COMMANDS = ("--setParameter", "enableTestCommands=1")


@pytest.fixture(scope="session")
def replica_set() -> Iterator[EmbeddedServer]:
    """A replica set of one member that takes ``configureFailPoint``."""
    with start_embedded(extra_args=TEST_COMMANDS) as server:
        yield server


@pytest.fixture(scope="session")
def replica_set_of_three() -> Iterator[EmbeddedServer]:
    """A replica set of three members, for tests that kill or freeze some; they restart what they killed."""
    with start_embedded(members=3, extra_args=TEST_COMMANDS) as server:
        yield server


@pytest.fixture(scope="session")
def _administrator(replica_set: EmbeddedServer) -> Iterator[MongoClient[Document]]:
    with MongoClient[Document](replica_set.uri) as administrator:
        yield administrator


@pytest.fixture
def database_uri(replica_set: EmbeddedServer, _administrator: MongoClient[Document]) -> Iterator[str]:
    """The URI of a fresh database, dropped after the test."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield replica_set.uri_for(name)
    _administrator.drop_database(name)


@pytest.fixture
async def client(database_uri: str) -> AsyncIterator[AsyncMongoClient[Document]]:
    """A client whose dates are aware, closed after the test."""
    async with AsyncMongoClient[Document](database_uri, tz_aware=True) as opened:
        yield opened


@pytest.fixture
def db(client: AsyncMongoClient[Document]) -> AsyncDatabase[Document]:
    """The test's fresh database."""
    return client.get_default_database()


@pytest.fixture(autouse=True)
def _leftovers_fail(request: pytest.FixtureRequest) -> None:
    """Fail an asynchronous test that leaves tasks running. Unclosed clients warn, and warnings are errors."""
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("_no_tasks_left")


@pytest.fixture
async def _no_tasks_left() -> AsyncIterator[None]:
    # Set up before the test's other fixtures, so checked after them: what they own is closed by then.
    yield
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"the test left tasks running: {left}"
