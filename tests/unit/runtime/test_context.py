"""What a handler's calls ask of the store, and in which order. What comes of it is tested on a real database."""

from __future__ import annotations

from typing import Any

from oplogue.model.definition import define_task
from oplogue.model.record import ClaimedRecord
from oplogue.runtime.context import Context, Run


async def sync_order(ctx: Context) -> None:
    """A handler."""


class Recorder:
    """Notes what a run asks for, in its order."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def fetch(self, run: Run, session: Any, options: Any) -> None:
        """Nothing is there."""

    async def watched_now(self, run: Run) -> None:
        """Nothing is there."""

    async def complete(self, run: Run, session: Any) -> bool:
        """It was owned."""
        self.asked.append("complete")
        return True

    def stop_renewal(self, run: Run) -> None:
        """Noted."""
        self.asked.append("stop renewal")


async def test_renewal_stops_before_the_completion_is_written() -> None:
    # A renewal would wait for the handler's transaction, or follow its completion.
    recorder = Recorder()
    task = define_task(
        sync_order,
        context_type=Context,
        task=None,
        collection="orders",
        filter=None,
        watch_projection=None,
        debounce=0,
        max_wait=None,
        retry_policy=None,
        cleanup_policy=None,
        execution_history_limit=5,
        evolution=None,
        timeout=None,
        concurrency=None,
        priority=0,
    )
    run = Run(
        record=ClaimedRecord(
            id=1, task=task.name, doc_id=1, attempts=1, values={}, token="t", first_error_at=None
        ),
        definition=task.definition,
        instance_id="me",
        store=recorder,
        elapsed_ms=lambda: 0,
        stop_renewal=recorder.stop_renewal,
        throttle=lambda task, until, scope: None,
    )
    await Context(run).mark_completed()
    await Context(run).mark_completed()
    assert recorder.asked == ["stop renewal", "complete"]
