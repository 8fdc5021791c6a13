"""The demo's live picture: frames in a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from oplogue.cli.audit import count_waiting
from oplogue.cli.customers import Book
from oplogue.cli.gauges import Gauges, percentile
from oplogue.cli.shop import NOTIFY, RATE, SYNC, Shop
from oplogue.clock import Clock
from oplogue.store.faults import StoreError

TASKS = (SYNC, NOTIFY, RATE)

_FRAME = 0.125
_LOOK = 0.5
_LINE = 1.0
_EVENTS = 8
_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 108
_LATEST = 1_000
_COLOURS = {logging.WARNING: "yellow", logging.ERROR: "red"}


@dataclass(slots=True)
class Scene:
    """What there is to show."""

    server: str
    shop: Shop
    gauges: Gauges
    book: Book
    clock: Clock
    started: float
    act: str = "starting"
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    speed: deque[int] = field(default_factory=lambda: deque[int]([0] * 60, maxlen=60))

    @property
    def elapsed(self) -> float:
        """Seconds since the first order."""
        return self.clock.monotonic() - self.started

    async def look(self) -> None:
        """Ask the database how many records wait."""
        with suppress(StoreError):  # the picture goes on; the engine reports what is wrong
            self.waiting = await count_waiting(self.shop.app)

    def latency(self, part: float, latest: int | None = None) -> str:
        """A percentile of the time from a write to its handler, as text."""
        samples = list(self.shop.ledger.latencies)
        value = percentile(samples if latest is None else samples[-latest:], part)
        return "–" if value is None else milliseconds(value)


async def show(scene: Scene, console: Console) -> None:
    """Show the scene until cancelled."""
    if console.is_terminal and not console.is_dumb_terminal:
        await _show_frames(scene, console)
    else:
        await _print_lines(scene, console)


async def _show_frames(scene: Scene, console: Console) -> None:
    clock = scene.clock
    looked, counted, done = 0.0, clock.monotonic(), scene.gauges.done_in_all()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        try:
            while True:
                now = clock.monotonic()
                if now - looked >= _LOOK:
                    await scene.look()
                    looked = now
                if now - counted >= 1:
                    scene.speed.append(scene.gauges.done_in_all() - done)
                    counted, done = now, scene.gauges.done_in_all()
                live.update(frame(scene, console.width), refresh=True)
                await clock.sleep(_FRAME)
        finally:
            live.update(frame(scene, console.width), refresh=True)


async def _print_lines(scene: Scene, console: Console) -> None:
    while True:
        console.print(line(scene), highlight=False, soft_wrap=True)
        await scene.clock.sleep(_LINE)


def frame(scene: Scene, width: int) -> RenderableType:
    """One picture."""
    return Panel(
        Group(
            _orders(scene),
            Text(),
            _tasks(scene),
            Text(),
            _latency(scene),
            _speed(scene),
            Text(),
            _events(scene),
        ),
        title=Text(f" Oplogue demo · {scene.server} ", style="bold"),
        title_align="left",
        subtitle=Text(f" {scene.act} · Ctrl-C leaves ", style="dim"),
        subtitle_align="right",
        border_style="cyan",
        width=min(_WIDTH, width),
    )


def line(scene: Scene) -> str:
    """The same in one line."""
    done = ", ".join(f"{task} {scene.gauges.done(task)}" for task in TASKS)
    return (
        f"{scene.elapsed:6.1f} s  {scene.act}: {scene.book.orders} orders written; done: {done}; "
        f"write → handler p50 {scene.latency(0.5, _LATEST)}, p99 {scene.latency(0.99, _LATEST)}"
    )


def milliseconds(value: float) -> str:
    """Seconds as text in milliseconds, with as many digits as matter."""
    return f"{value * 1000:.1f} ms" if value < 0.1 else f"{value * 1000:,.0f} ms"


def _orders(scene: Scene) -> Text:
    book = scene.book
    reviews = sum(book.reviews.values())
    text = Text("customers wrote  ", style="dim")
    text.append(f"{book.orders:,}", "bold").append(" orders  ", "dim")
    text.append(f"{len(book.paid):,}", "bold").append(" paid  ", "dim")
    text.append(f"{book.changes:,}", "bold").append(" changed after that  ", "dim")
    text.append(f"{reviews:,}", "bold").append(" reviews", "dim")
    minutes, seconds = divmod(int(scene.elapsed), 60)
    return text.append(f"   {minutes}:{seconds:02}", "cyan")


def _tasks(scene: Scene) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    table.add_column("task", ratio=2)
    for name in ("planned", "running", "done", "skipped", "retried", "failed", "runs/s"):
        table.add_column(name, justify="right", ratio=1)
    rates = scene.gauges.mark(TASKS)
    for task in TASKS:
        ended = scene.gauges.ended[task]
        retried, failed = ended["retried"], ended["failed"]
        table.add_row(
            Text(task, style="bold"),
            f"{scene.waiting.get(task, 0):,}",
            f"{len(scene.gauges.running[task]):,}",
            Text(f"{ended['completed']:,}", style="green"),
            Text(f"{ended['skipped']:,}", style="dim"),
            Text(f"{retried:,}", style="yellow" if retried else "dim"),
            Text(f"{failed:,}", style="red bold" if failed else "dim"),
            f"{rates[task]:,.0f}",
        )
    return table


def _latency(scene: Scene) -> Text:
    text = Text("write → handler  ", style="dim")
    text.append("p50 ", "dim").append(scene.latency(0.5, _LATEST), "bold cyan")
    text.append("  p99 ", "dim").append(scene.latency(0.99, _LATEST), "bold cyan")
    return text.append(f"   {NOTIFY}, no debounce", "dim")


def _speed(scene: Scene) -> Text:
    most = max(scene.speed)
    text = Text("finished/s       ", style="dim")
    bars = "".join(_BARS[0 if not n else max(1, round(8 * n / most))] for n in scene.speed)
    return text.append(bars, "cyan").append(f"  most {most:,}", "dim")


def _events(scene: Scene) -> Group:
    news = [(at, logging.INFO, message) for at, message in scene.shop.ledger.news]
    recent = sorted([*scene.gauges.recent, *news])[-_EVENTS:]
    lines = [Text("latest events", style="dim")]
    for at, level, message in recent:
        text = Text(f"{at.astimezone():%H:%M:%S}  ", style="dim", no_wrap=True, overflow="ellipsis")
        lines.append(text.append(message, _COLOURS.get(level, "default")))
    lines += [Text()] * (_EVENTS - len(recent))
    return Group(*lines)
