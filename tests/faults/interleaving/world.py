"""The documents of one example, the log of what happened to them, and what must be true in the end.

The oracle. When writes have stopped, and handlers succeed: every document that matches the filter has, for each
task, a completed record with the document's watched values, and a run that came to its end, began with these
values, and did not begin too early. Too early is before the planner had taken in another state: a position that
was saved behind a state says that the record knew it, so that the next state fires; and a document that was
deleted is new when it comes again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bson import Timestamp

from oplogue.model.definition import Namespace
from oplogue.store.stream import Event, Kind

Document = dict[str, Any]

GONE = "-"
STATES: Mapping[str, Document] = {
    "a": {"status": "paid", "total": "a"},
    "b": {"status": "paid", "total": "b"},
    "x": {"status": "open", "total": "a"},
}
"""What a write makes of a document: inside the filter with one value or the other, or outside. ``-`` deletes it."""


@dataclass
class Story:
    """One document, as the world and the planner's saved position know it."""

    id: str
    state: str = GONE
    changed_in: int = 0
    """The number of its last event."""
    seen: str = GONE
    """The last state of which a saved position says that it was planned."""
    seen_at: int = 0
    must_run_from: int = 0
    """The moment before which no run of the seen state counts."""

    @property
    def matches(self) -> bool:
        """Whether it is inside the filter."""
        return self.state in ("a", "b")


@dataclass
class Call:
    """One call of a handler."""

    task: str
    id: str
    total: str
    began: int
    handled: bool = False


@dataclass
class World:
    """Everything outside the library."""

    source: Namespace
    stories: dict[str, Story]
    events: list[Event] = field(default_factory=list[Event])
    calls: list[Call] = field(default_factory=list[Call])
    wishes: dict[str, str] = field(default_factory=dict[str, str])
    """What the next run for a document does instead of succeeding."""
    claims: dict[Any, list[int]] = field(default_factory=lambda: defaultdict(list))
    """For each record, when the claims were begun that somebody knows to have got it."""
    fenced: int = 0
    """How many outcomes came too late, and changed nothing."""
    moment: int = 0
    saved: list[tuple[int, Timestamp]] = field(default_factory=list[tuple[int, Timestamp]])
    """Terms and times of the positions that were saved, in order."""

    def now(self) -> int:
        """A later moment than all before."""
        self.moment += 1
        return self.moment

    # -- what happens

    def written(self, id_: str, state: str, time: Timestamp) -> None:
        """A document changed, was inserted or deleted; the stream will say so."""
        story = self.stories[id_]
        kind = Kind.DELETED if state == GONE else Kind.INSERTED if story.state == GONE else Kind.CHANGED
        self.events.append(Event(kind, self.source, id_, time))
        story.state, story.changed_in = state, len(self.events)
        if state == GONE:
            self._saw(story)

    def began(self, task: str, id_: str, total: str) -> Call:
        """A handler was called."""
        self.calls.append(Call(task, id_, total, self.now()))
        return self.calls[-1]

    def planned(self, term: int, time: Timestamp) -> None:
        """A position was saved: what had happened until then, and nothing since, is in the records."""
        before = self.saved[-1] if self.saved else (term, time)
        assert before[0] <= term, f"the leader of term {term} saved a position after that of term {before[0]}"
        assert before[1] <= time, f"the position went back from {before[1]} to {time}"
        self.saved.append((term, time))
        for story in self.stories.values():
            if story.seen != story.state and self.events[story.changed_in - 1].time <= time:
                self._saw(story)

    def _saw(self, story: Story) -> None:
        story.must_run_from = story.seen_at
        story.seen, story.seen_at = story.state, self.now()

    # -- what must be true

    def violations(self, tasks: Sequence[str], rows: Sequence[Document]) -> Iterator[str]:
        """Whatever was lost, or is stuck."""
        records = {(row["task"], row["sourceDocId"]): row for row in rows}
        for (task, id_), row in records.items():
            if row["status"] != "completed":
                yield f"stuck: {task} of {id_} is {row['status']}"
        for story in self.stories.values():
            for task in tasks if story.matches else ():
                yield from self._lost(story, task, records.get((task, story.id)))

    def _lost(self, story: Story, task: str, row: Document | None) -> Iterator[str]:
        if row is None:
            yield f"lost: {task} has no record for {story.id}"
            return
        if row["lastObservedValues"] != {"total": story.state}:
            yield f"lost: {task} of {story.id} is {story.state}, its record {row['lastObservedValues']}"
        handled = [
            call for call in self.calls if (call.task, call.id, call.handled) == (task, story.id, True)
        ]
        if not any(call.total == story.state and call.began >= story.must_run_from for call in handled):
            yield f"lost: {task} of {story.id} is {story.state} since {story.must_run_from}; ran for {handled}"
