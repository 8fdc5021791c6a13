"""What this instance may claim now, how much of each task, and when to look again. No I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from oplogue.clock import Clock
from oplogue.model.shares import Offer, fair_shares
from oplogue.runtime.work import Kind
from oplogue.store.tasks import Look, Wanted

_FEW_KINDS = 16
LONGEST_REST = 5.0
_FLOOR_MARGIN = timedelta(seconds=2)
_FLOORS_LAST = 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What to take of what the looks offered."""

    shares: Mapping[str, int]
    missed: bool
    """Whether something is due that the looks did not ask for: look again at once."""
    rest: float
    """Seconds until the next record is due, as far as is known."""


class Agenda:
    """The tasks of this instance: their limits, their throttles, and which of them are hot."""

    def __init__(self, *, kinds: Iterable[Kind], allowed: Callable[[str], bool] | None, clock: Clock) -> None:
        self.kinds: dict[str, Kind] = {kind.name: kind for kind in kinds}
        self.held: Counter[str] = Counter()
        """How many records of each task are claimed and not settled."""
        self.warmed_at: dict[str, float] = {}
        """When each task was last told to have been planned."""
        self._allowed = allowed
        self._clock = clock
        self._throttled_until: dict[str, float] = {}
        self._held_back_at: dict[str, float] = {}
        # With few tasks every look asks for the first records of each; with many, of those that are hot: due at
        # the last look, or told of by the planner.
        self._hot: set[str] = set()
        # Rounds of claims, and in which of them each task got its last share.
        self._round = 0
        self._served_in: defaultdict[str, int] = defaultdict(int)
        # Claimed records leave deleted entries at the front of the index, which every look would walk over.
        self._floors: dict[str, datetime] = {}
        self._floors_since = clock.monotonic()

    def warm(self, names: Iterable[str]) -> bool:
        """Records of these tasks are due or will be; whether any task is ours."""
        mine = self.kinds.keys() & set(names)
        self._hot |= mine
        self.warmed_at.update(dict.fromkeys(mine, self._clock.monotonic()))
        return bool(mine)

    def throttle(self, name: str, seconds: float) -> None:
        """Claim none of this task for so long."""
        self.hold_back(name)
        self._throttled_until[name] = self._clock.monotonic() + seconds

    def is_throttled(self, name: str) -> bool:
        """Whether the task is throttled on this instance."""
        return self._throttled_until.get(name, 0.0) > self._clock.monotonic()

    def hold_back(self, name: str) -> None:
        """Claims of this task that are under way come too late."""
        self._held_back_at[name] = self._clock.monotonic()

    def came_too_late(self, name: str, asked_at: float) -> bool:
        """Whether the task was held back after a claim for it was begun."""
        return self._held_back_at.get(name, asked_at - 1) >= asked_at

    def unthrottle(self, name: str) -> None:
        """Claim of this task again."""
        self._held_back_at.pop(name, None)
        self._throttled_until.pop(name, None)

    def is_full(self, name: str) -> bool:
        """Whether as many of the task are claimed as may be."""
        limit = self.kinds[name].concurrency
        return limit is not None and self.held[name] >= limit

    def claimable(self) -> set[str]:
        """The tasks of which a record may be claimed now."""
        now = self._clock.monotonic()
        return {
            name
            for name in self.kinds
            if self._throttled_until.get(name, now) <= now
            and not self.is_full(name)
            and (self._allowed is None or self._allowed(name))
        }

    def wanted(self, names: Iterable[str], room: int) -> dict[str, Wanted]:
        """How many first due records of each task to ask for."""
        few = len(self.kinds) <= _FEW_KINDS
        self._drop_old_floors()
        return {
            name: Wanted(self.room_of(name, room), self._floors.get(name))
            for name in names
            if few or name in self._hot
        }

    def _drop_old_floors(self) -> None:
        now = self._clock.monotonic()
        if now - self._floors_since > _FLOORS_LAST:
            self._floors.clear()
            self._floors_since = now

    def choose(self, looks: Sequence[Look], room: int) -> Choice:
        """Fair shares of what is due and not held back."""
        for look in looks:
            self._drop_held_back(look)
        self._raise_floors(looks, room)
        offers = {name: len(ids) for look in looks for name, ids in look.due.items()}
        overdue = {name for look in looks for name in _overdue(look)}
        missed = overdue - self._hot - offers.keys()
        self._hot = overdue
        rest = min(_until_next(looks), self._until_unthrottled())
        return Choice(self._share(room, offers), bool(missed), rest)

    def _share(self, room: int, offers: Mapping[str, int]) -> dict[str, int]:
        shares = fair_shares(
            room,
            [
                Offer(name, count, self.kinds[name].priority, self.held[name], self._served_in[name])
                for name, count in offers.items()
            ],
        )
        self._round += 1
        self._served_in.update(dict.fromkeys(shares, self._round))
        return shares

    def _raise_floors(self, looks: Sequence[Look], room: int) -> None:
        """While looks come back full, the next begins where the last one ended; a short look begins anew."""
        for look in looks:
            for name, ids in look.due.items():
                if len(ids) >= self.room_of(name, room):
                    self._floors[name] = look.reached[name] - _FLOOR_MARGIN
                else:
                    self._floors.pop(name, None)

    def room_of(self, name: str, room: int) -> int:
        """How many of the task may be claimed, where there is so much room for all."""
        limit = self.kinds[name].concurrency
        return room if limit is None else min(room, limit - self.held[name])

    def _drop_held_back(self, look: Look) -> None:
        """Leave out what is paused, throttled or gated for the whole cluster."""
        for name, control in look.controls.items():
            kind = self.kinds.get(name)
            if kind is None or look.now is None or control.allows(kind.version, look.now):
                continue
            look.due.pop(name, None)
            look.next_at.pop(name, None)
            if control.held_until > look.now:
                look.next_at[name] = control.held_until

    def _until_unthrottled(self) -> float:
        now = self._clock.monotonic()
        ends = (until - now for until in self._throttled_until.values() if until > now)
        return min(ends, default=LONGEST_REST)


def _overdue(look: Look) -> list[str]:
    now = look.now
    return [] if now is None else [name for name, at in look.next_at.items() if at <= now]


def _until_next(looks: Sequence[Look]) -> float:
    """Seconds until the first record that is not due yet."""
    waits = (
        (at - look.now).total_seconds()
        for look in looks
        if look.now is not None
        for at in look.next_at.values()
        if at > look.now
    )
    return min(waits, default=LONGEST_REST)
