"""An app's health, as probes ask for it."""

from __future__ import annotations

import asyncio

from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Gate, Stage, within

from oplogue import Context, Health
from oplogue.embedded import start_embedded


def reason(health: Health) -> str:
    """The only reason."""
    assert len(health.reasons) == 1, health
    return health.reasons[0]


async def test_an_app_is_ready_from_its_start_to_its_stop(stage: Stage) -> None:
    assert reason(stage.app.health()) == "the instance is not started"
    starting = asyncio.create_task(stage.app.start())
    await asyncio.sleep(0)  # noqa: TID251 - the start has begun, and waits for the server
    assert reason(stage.app.health()) == "the instance is starting"
    await starting
    assert stage.app.health() == Health(live=True, ready=True)
    await stage.app.stop()
    assert reason(stage.app.health()) == "the instance is not started"


async def test_an_app_that_stops_is_live_and_not_ready_while_a_handler_finishes(stage: Stage) -> None:
    gate = Gate()

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def handle(ctx: Context) -> None:
        await gate()

    await stage.app.start()
    await stage.app.database["orders"].insert_one({"_id": 1})
    await gate.reached()
    stopping = asyncio.create_task(stage.app.stop())
    await stage.next("leadership.lost")
    assert stage.app.health() == Health(live=True, ready=False, reasons=("the instance is stopping",))
    gate.open()
    await within(stopping)


async def test_an_app_whose_database_is_gone_for_longer_than_a_lease_is_live_and_not_ready_until_it_is_back(
    make_stage: MakeStage,
) -> None:
    with start_embedded() as server:
        stage = make_stage(uri=server.uri_for("shop"), lease="1s")
        await stage.app.start()
        server.members[0].freeze()
        await stage.until(lambda: not stage.app.health().ready)
        health = stage.app.health()
        assert health.live
        assert reason(health).startswith("the database has not answered for")
        server.members[0].thaw()

        async def ready() -> bool:
            await asyncio.sleep(0.01)  # noqa: TID251 - no event tells of a heartbeat
            return stage.app.health().ready

        await stage.eventually(ready)
        await stage.app.stop()
