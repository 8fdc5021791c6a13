"""The one oracle: acknowledged writes against the ledgers of handler runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymongo.database import Database

from harness.tail import Tail


@dataclass(slots=True)
class Run:
    """One execution of a handler, as its own process noted it."""

    worker: str
    task: str
    id: str
    version: Any
    attempt: int
    pid: int
    started: float
    ended: float | None = None
    how: str | None = None

    @property
    def handled(self) -> bool:
        """Whether the handler came to its end."""
        return self.how == "end"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be zero, and what is to be told."""

    lost: tuple[str, ...]
    stuck: tuple[str, ...]
    effects_off: int
    duplicates: int
    runs: int
    writes: int

    @property
    def clean(self) -> bool:
        """Nothing lost, stuck or applied twice."""
        return not self.lost and not self.stuck and not self.effects_off

    def __str__(self) -> str:
        return (
            f"lost {len(self.lost)} {self.lost[:5]}, stuck {len(self.stuck)} {self.stuck[:5]}, "
            f"effects off by {self.effects_off}, duplicates {self.duplicates} of {self.runs} runs"
        )


class Oracle:
    """Reads all ledgers of a folder."""

    def __init__(self, folder: Path, database: Database[dict[str, Any]]) -> None:
        self._folder = folder
        self._database = database
        self._tails: dict[Path, Tail] = {}
        self._runs: dict[tuple[str, int], Run] = {}
        self.odd_effects: list[Any] = []
        """What the last verdict found applied twice, or not at all."""

    def runs(self, task: str | None = None) -> list[Run]:
        """Every run so far, in the order of their starts."""
        for path in self._folder.glob("*.ledger"):
            for entry in self._tails.setdefault(path, Tail(path)).new():
                self._note(path.stem, entry)
        runs = [run for run in self._runs.values() if task is None or run.task == task]
        return sorted(runs, key=lambda run: run.started)

    def _note(self, worker: str, entry: dict[str, Any]) -> None:
        key = (worker, entry["run"])
        if entry["what"] == "start":
            self._runs[key] = Run(
                worker, entry["task"], entry["id"], entry["v"], entry["attempt"], entry["pid"], entry["at"]
            )
        else:
            self._runs[key].ended, self._runs[key].how = entry["at"], entry["what"]

    def in_flight(self, worker: str) -> list[Run]:
        """Runs of a worker that have not ended."""
        return [run for run in self.runs() if run.worker == worker and run.how is None]

    def verdict(
        self,
        task: str,
        collection: str,
        latest: Mapping[Any, int],
        *,
        effects: str | None = None,
        writes: int = 0,
        by_effects: bool = False,
    ) -> Verdict:
        """Judge one task: ``latest`` has the version of each document that was acknowledged last.

        Where effects are transactional they alone tell what was handled: a process that was killed after its
        commit has noted no end.
        """
        runs = self.runs(task)
        best: dict[str, int] = {}
        for run in runs:
            if run.handled and isinstance(run.version, int):
                best[run.id] = max(best.get(run.id, 0), run.version)
        lost = [repr(id_) for id_, version in latest.items() if best.get(repr(id_), 0) < version]
        handled = Counter((run.id, repr(run.version)) for run in runs if run.handled)
        return Verdict(
            lost=() if by_effects else tuple(lost),
            stuck=tuple(self.stuck(task, collection, latest)),
            effects_off=0 if effects is None else self._effects_off(task, effects, latest),
            duplicates=sum(count - 1 for count in handled.values()),
            runs=len(runs),
            writes=writes,
        )

    def stuck(self, task: str, collection: str, latest: Mapping[Any, int]) -> list[str]:
        """Documents whose record is missing, not completed, or of another state than the document."""
        found = {
            repr(record["sourceDocId"]): record
            for record in self._database[f"{collection}_tasks"].find({"task": task})
        }
        states: list[str] = []
        for id_, version in latest.items():
            record = found.get(repr(id_))
            if record is None:
                states.append(f"{id_!r}: no record")
                continue
            observed = record.get("lastObservedValues", {})
            if record["status"] != "completed" or observed.get("v") != version:
                why = record.get("lastError")
                states.append(f"{id_!r}: {record['status']} {observed} of {version}; {why}")
        return states

    def _effects_off(self, task: str, effects: str, latest: Mapping[Any, int]) -> int:
        applied = list(self._database[effects].find({"_id.task": task}))
        # Effects of states that were overtaken before they were handled are not due; none may be there twice.
        twice = sum(effect["times"] - 1 for effect in applied)
        there = {(effect["_id"]["id"], effect["_id"]["v"]) for effect in applied}
        missing = [(id_, version) for id_, version in latest.items() if (id_, version) not in there]
        self.odd_effects = [effect for effect in applied if effect["times"] != 1] + missing
        return twice + len(missing)
