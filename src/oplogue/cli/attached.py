"""A worker process as it sees itself: it runs the app, and answers its parent."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback

from oplogue.app import SUPERVISED, App
from oplogue.cli.failures import OK, USAGE, WRONG, code_of, told
from oplogue.cli.link import Message, Reply, Tether
from oplogue.cli.targets import find_app
from oplogue.clock import Clock
from oplogue.errors import ConfigurationError, OplogueError
from oplogue.model.payloads import Event

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_LOOK = 1.0
_METRICS_WITHIN = 5.0


def attached(target: str, *, burst: bool) -> int:
    """Be one worker process of a parent; the exit code."""
    return Attached(target, burst=burst, debug="--debug" in sys.argv, clock=Clock()).run()


class Attached:
    """The app of one worker process, on the line to its parent."""

    def __init__(self, target: str, *, burst: bool, debug: bool, clock: Clock) -> None:
        self._target = target
        self._burst = burst
        self._debug = debug
        self._clock = clock
        self._app: App | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tether = Tether(self._answer, self._orphaned)

    def run(self) -> int:
        """Run it until it is told to stop; the exit code."""
        try:
            # What the user's module raises as it is imported would be raised again and again: wrong usage.
            app = find_app(self._target)
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent says it
            return self._fail(error, USAGE)
        # This process is supervised, not those that its handlers start.
        os.environ.pop(SUPERVISED, None)
        self._app = app
        app.on("instance.started")(self._started)
        app.on("instance.stopped")(self._stopped)
        if not logging.getLogger().handlers:
            logging.basicConfig(format=_FORMAT, level=logging.INFO)
        self._tether.start()
        try:
            app.run(burst=self._burst)
        except ConfigurationError as error:
            return self._fail(error, code_of(error))
        except Exception as error:  # noqa: BLE001 - the database may not be there yet: the parent tries again
            return self._fail(error, WRONG, "the app can't be started: ")
        return OK

    def _fail(self, error: Exception, code: int, what: str = "") -> int:
        if self._debug:
            traceback.print_exception(error)
        self._tether.fail(what + told(error))
        return code

    def _answer(self, ask: str, reply: Reply) -> None:
        app = self._app
        if app is None:
            return
        if ask == "health":
            health = app.health()
            reply({"live": health.live, "ready": health.ready, "reasons": health.reasons})
        elif ask == "metrics":
            # The event loop reads them, and may be blocked: other questions don't wait for that.
            threading.Thread(
                target=lambda: reply(self._metrics(app)), name="oplogue-metrics", daemon=True
            ).start()

    def _started(self, _: Event) -> None:
        self._loop = asyncio.get_running_loop()

    def _stopped(self, _: Event) -> None:
        self._loop = None

    def _metrics(self, app: App) -> Message:
        loop = self._loop
        if loop is None:
            return {"problem": "the process is not started"}
        answer = asyncio.run_coroutine_threadsafe(app.get_prometheus_metrics(), loop)
        try:
            text = answer.result(_METRICS_WITHIN)
        except OplogueError as error:
            return {"problem": told(error)}
        except TimeoutError:
            answer.cancel()
            return {"problem": f"the event loop has not answered for {_METRICS_WITHIN:g} s"}
        if text is None:
            return {"problem": "monitoring is disabled"}
        return {"text": text.decode(), "of_all": app.monitoring.scrape_mode == "cluster"}

    def _orphaned(self) -> None:
        """The parent is gone: stop gracefully, and if a handler blocks the event loop for good, hard."""
        logging.getLogger("oplogue.instance").warning("the parent of this worker process is gone: stopping")
        os.kill(os.getpid(), signal.SIGTERM)
        assert self._app is not None
        while self._app.health().live:
            self._clock.block(_LOOK)
        logging.shutdown()
        os._exit(WRONG)
