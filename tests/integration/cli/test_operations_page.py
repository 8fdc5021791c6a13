"""Every command of the page for operators does what the page says, on a shop in trouble."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from bson import ObjectId
from pymongo.asynchronous.database import AsyncDatabase
from tests.integration.cli.conftest import Command
from tests.support.running import Stage

from oplogue import Context, Fixed

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "operations.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
RECORD = ObjectId("6aff6a7afb8c73de33d16c69")


async def test_the_commands_of_the_page_run_in_its_order(
    stage: Stage, db: AsyncDatabase[dict[str, Any]], oplogue: Command
) -> None:
    @stage.app.reactive_task(
        task="ship", collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1)
    )
    async def _ship(ctx: Context) -> None:
        if ctx.watched_values.get("bad"):
            raise RuntimeError("no parcels left")

    await stage.app.start()
    await stage.next("reconciliation.finished")
    await db["orders"].insert_many(
        [
            {"_id": "order-7", "bad": True, "customer": {"vip": True}, "total": 500},
            {"_id": "order-8", "bad": True},
            {"_id": "order-9", "test": True},
        ]
    )
    await stage.counted(2, status="failed")
    await stage.counted(1, status="completed")
    record = await db["orders_tasks"].find_one_and_delete({"sourceDocId": "order-7"})
    assert record is not None
    await db["orders_tasks"].insert_one({**record, "_id": RECORD})

    said: dict[str, str] = {}
    for line in COMMANDS:
        program, *arguments = shlex.split(line)
        assert program == "oplogue"
        ended = await oplogue(*arguments)
        assert (ended.code, ended.err) == (0, ""), line
        said[line] = ended.out
        if "retry" in line and "--yes" in line:
            await stage.counted(2, status="failed")

    def last_line(part: str) -> list[str]:
        return [out.splitlines()[-1].strip() for line, out in said.items() if part in line]

    assert last_line("tasks list --status failed")[0] == "2 records"
    assert last_line("no parcels") == ["2 records"]
    assert last_line("order-7") == ["1 record"]
    assert last_line("customer.vip") == ["1 record"]
    assert last_line("tasks retry") == ["would retry 2 records", "retried 2 records"]
    assert last_line("tasks pause")[0].startswith("ship is paused until ")
    assert last_line("tasks resume") == ["ship runs again"]
    assert last_line("reconcile") == [
        "would look at about 3 documents",
        "reconciled 1 task, about 3 documents",
    ]
    assert last_line("tasks delete") == ["would delete 1 record", "deleted 1 record"]
    assert "RuntimeError: no parcels left" in said[f"oplogue tasks show {RECORD}"]
