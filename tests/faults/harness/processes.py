"""Worker processes: started, watched by their logs and ledgers, killed and frozen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.tail import Tail
from harness.waiting import CLOCK, until

_WORKER = Path(__file__).parent.parent / "worker.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker is told."""

    uri: str
    tasks: Sequence[Mapping[str, Any]]
    lease: float = 2.0
    concurrency: int = 10
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


class Worker:
    """One process. Its name is its instance id; a restart has another."""

    def __init__(self, name: str, config: WorkerConfig, folder: Path) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        self.ledger_path = folder / f"{name}.ledger"
        self._tail = Tail(self.log_path)
        self._log: list[dict[str, Any]] = []
        told = {
            "uri": config.uri,
            "tasks": list(config.tasks),
            "lease": config.lease,
            "concurrency": config.concurrency,
            "name": name,
            "ledger": str(self.ledger_path),
            **config.more,
        }
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_WORKER), json.dumps(told)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **config.environment},
            )
        self.pid = self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def await_started(self, timeout: float = 30) -> None:
        """Wait until its app has started."""
        self.await_event("instance.started", timeout=timeout)

    def await_event(self, code: str, *, count: int = 1, timeout: float = 30) -> None:
        """Wait until its log has that many events of a code."""

        def there() -> bool:
            if self.exit_status is not None and self.events(code) < count:
                raise AssertionError(f"{self.name} ended with {self.exit_status}:\n{self.log_tail()}")
            return self.events(code) >= count

        def what() -> str:
            self.tell_stacks()
            return f"{count} × {code} in the log of {self.name}:\n{self.log_tail(40)}"

        until(there, timeout=timeout, what=what)

    def events(self, code: str) -> int:
        """How often its log has the code."""
        return sum(entry.get("code") == code for entry in self.log())

    def log(self) -> list[dict[str, Any]]:
        """Its log's lines; what is no JSON (a traceback at the end) as messages."""
        self._log += self._tail.new()
        return self._log

    def log_tail(self, lines: int = 12) -> str:
        """For a person to read."""
        return "\n".join(str(entry.get("message")) for entry in self.log()[-lines:])

    def tell_stacks(self) -> None:
        """Let it write the stacks of its coroutines to its log."""
        self._signal(signal.SIGUSR2)
        CLOCK.block(0.5)

    def kill(self) -> int:
        """End it with SIGKILL; its exit status."""
        self._signal(signal.SIGKILL)
        return self._process.wait(10)

    def freeze(self) -> None:
        """Hold it with SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def stop(self, timeout: float = 20) -> int:
        """Ask it to end gracefully; its exit status. Kills it if it doesn't."""
        self.thaw()
        self._signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return self.kill()

    def await_exit(self, timeout: float) -> int:
        """Wait until it has ended by itself; its exit status."""
        return self._process.wait(timeout)

    def cpu_seconds(self) -> float:
        """Processor time that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def holds(self) -> dict[str, int]:
        """What it holds now: memory, descriptors, threads, and coroutines by its own word."""
        told = self.events("coroutines")
        self._signal(signal.SIGUSR1)
        self.await_event("coroutines", count=told + 1)
        coroutines = next(one["count"] for one in reversed(self.log()) if one.get("code") == "coroutines")
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return {
            "kilobytes": int(fields["VmRSS"].split()[0]),
            "descriptors": len(list(Path(f"/proc/{self.pid}/fd").iterdir())),
            "threads": int(fields["Threads"]),
            "coroutines": int(coroutines),
        }

    def _signal(self, number: int) -> None:
        if self.exit_status is None:
            os.kill(self.pid, number)
