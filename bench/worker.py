"""Oplogue in a process of its own, for benchmarks with several: ``python -m bench.worker URI --slots 10``.

It says ``ready`` on its standard output when it has started, and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from oplogue import App, Context


@asynccontextmanager
async def worker(
    uri: str, *, slots: float, burn_ms: float = 0, await_ms: float = 0
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start one, and end it."""
    options = {"--slots": slots, "--burn-ms": burn_ms, "--await-ms": await_ms}
    arguments = ["-m", "bench.worker", uri, *(f"{name}={value:g}" for name, value in options.items())]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        async with asyncio.timeout(30):
            await process.stdout.readline()
        yield process
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(20):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _work(uri: str, slots: int, burn_ms: float, await_ms: float) -> None:
    app = App(uri, concurrency=slots)

    @app.reactive_task(
        task="t", collection="orders", filter={"status": "paid"}, watch_projection={"status": 1}, debounce=0
    )
    async def handler(_ctx: Context) -> None:
        if await_ms:
            await asyncio.sleep(await_ms / 1000)
        until = time.thread_time() + burn_ms / 1000
        while time.thread_time() < until:
            pass

    async with app:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """Run until the standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("uri")
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--burn-ms", type=float, default=0)
    parser.add_argument("--await-ms", type=float, default=0)
    arguments = parser.parse_args()
    work = _work(arguments.uri, arguments.slots, arguments.burn_ms, arguments.await_ms)
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


if __name__ == "__main__":
    main()
