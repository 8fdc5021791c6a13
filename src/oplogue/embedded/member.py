"""One development mongod: its command, its process behind a guard, and its log."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from oplogue.clock import Clock
from oplogue.errors import EmbeddedServerError
from oplogue.store import replica

_DEFAULTS = {"--oplogSize": "512", "--wiredTigerCacheSizeGB": "0.5"}
_CLEAN_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.005
_CLOCK = Clock()


@dataclass(frozen=True)
class Recipe:
    """What one member is started from, again and again."""

    mongod: Path
    port: int
    folder: Path
    scratch: Path | None
    extra_args: tuple[str, ...]

    def command(self) -> list[str]:
        given = {argument.partition("=")[0] for argument in self.extra_args}
        defaults = [word for name, value in _DEFAULTS.items() if name not in given for word in (name, value)]
        return [
            *(str(self.mongod), "--dbpath", str(self.folder), "--replSet", replica.SET_NAME),
            *("--bind_ip", "127.0.0.1", "--port", str(self.port), "--networkMessageCompressors", "disabled"),
            *(("--nounixsocket",) if os.name == "posix" else ()),
            *("--setParameter", "diagnosticDataCollectionEnabled=false"),
            *defaults,
            *self.extra_args,
        ]

    def orders(self) -> str:
        """What the guard is told; see `oplogue.embedded.guard.Orders`."""
        return json.dumps(
            {
                "command": self.command(),
                "parent": os.getpid(),
                "scratch": None if self.scratch is None else str(self.scratch),
                "grace": _CLEAN_STOP_SECONDS if self.scratch is None else 0,
            }
        )


class EmbeddedMember:
    """One mongod. The faults (``kill``, ``freeze``, ``thaw``, ``restart``) are for tests; they need POSIX."""

    def __init__(self, recipe: Recipe) -> None:
        self.port: int = recipe.port
        self.pid: int = 0
        self.log_path: Path = recipe.folder.with_suffix(".log")
        self._recipe = recipe
        self._guard: subprocess.Popen[str] | None = None
        self._expected_to_end = False

    @property
    def alive(self) -> bool:
        """Whether its process runs (a frozen one does)."""
        return self._guard is not None and self._guard.poll() is None

    def kill(self) -> None:
        """End it with SIGKILL and wait until it is gone. Its data stay, for `restart`."""
        self._expected_to_end = True
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.await_end()

    def freeze(self) -> None:
        """Hold its process with SIGSTOP: connections stay open and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self, timeout: float = 30) -> None:
        """Kill it if it runs, start it on its port and data, and wait until it is primary or secondary."""
        self.kill()
        self.launch()
        self.await_port(timeout)
        replica.await_member(self.port, clock=_CLOCK, timeout=timeout, alive=self.check)

    def launch(self) -> None:
        """Start the guard, which starts mongod. Returns when the process exists, before it answers."""
        self._recipe.folder.mkdir(parents=True, exist_ok=True)
        guard = Path(__file__).with_name("guard.py")
        with self.log_path.open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(guard), self._recipe.orders()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        _, stdout = _pipes(self._guard)
        pid = stdout.readline()
        if not pid:
            self.await_end()
            raise EmbeddedServerError(f"mongod could not be started:\n{_log_tail(self.log_path)}")
        self.pid = int(pid)
        self._expected_to_end = False

    def await_port(self, timeout: float) -> None:
        """Wait until its port answers."""
        deadline = _CLOCK.monotonic() + timeout
        while True:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            self.check()
            if _CLOCK.monotonic() > deadline:
                raise EmbeddedServerError(f"mongod was silent for {timeout:g} s:\n{_log_tail(self.log_path)}")
            _CLOCK.block(_POLL_SECONDS)

    def check(self) -> None:
        """Raise `EmbeddedServerError` with the log's tail if it died by itself."""
        if self._guard is None or self._expected_to_end or self.alive:
            return
        code = self._guard.returncode
        how = f"was ended by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
        raise EmbeddedServerError(
            f"the embedded mongod at port {self.port} {how}; its log {self.log_path} says:\n"
            f"{_log_tail(self.log_path)}"
        )

    def ask_to_end(self) -> None:
        """Tell the guard to end its server, without waiting."""
        self._expected_to_end = True
        if self._guard is not None and self.alive:
            # A word, not just a closed pipe: a forked child of this process may hold the pipe open.
            with suppress(OSError, ValueError):
                print("stop", file=_pipes(self._guard)[0], flush=True)

    def await_end(self) -> None:
        """Wait until server and guard are gone."""
        if self._guard is None:
            return
        self._guard.wait()
        for pipe in _pipes(self._guard):
            with suppress(OSError):
                pipe.close()


def _pipes(guard: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if guard.stdin is None or guard.stdout is None:
        raise AssertionError("the guard is started with pipes")
    return guard.stdin, guard.stdout


def _log_tail(log: Path, lines: int = 12) -> str:
    """The last errors of mongod's log, else its last lines, for a person to read."""
    with suppress(FileNotFoundError):
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 256_000))
            text = file.read().decode(errors="replace")
        readable = [_readable(line) for line in text.splitlines() if line.strip()]
        errors = [line for line in readable if not line.startswith(("I ", "W ", "D"))]
        return "\n".join(f"  {line}" for line in (errors or readable)[-lines:])
    return "  (no log)"


def _readable(line: str) -> str:
    try:
        entry = json.loads(line)
        text = f"{entry['s']} {entry['c']}: {entry['msg']}"
        return (text + (f" {json.dumps(entry['attr'])}" if "attr" in entry else ""))[:400]
    except (ValueError, KeyError, TypeError):
        return line[:400]
