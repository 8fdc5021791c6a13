"""The leader's document: one lease, terms that only grow, and writes that a former leader can't make."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.support.rig import BOUND, LONG_AGO, Document, Rig

from oplogue.errors import LeadershipLostError
from oplogue.store.leadership import LEADER, Leadership, Term, Vacancy, renew

LEASE = timedelta(minutes=1)


@pytest.fixture
def leadership(rig: Rig) -> Leadership:
    return Leadership(rig.client, rig.globals, bound=BOUND)


async def elected(leadership: Leadership, owner: str = "me") -> Term:
    term = await leadership.acquire(owner, LEASE)
    assert isinstance(term, Term)
    return term


async def stored(rig: Rig) -> Document:
    document = await rig.db[rig.globals.collection].find_one({"_id": LEADER})
    assert document is not None
    return document


async def edit(rig: Rig, **fields: Any) -> None:
    await rig.db[rig.globals.collection].update_one({"_id": LEADER}, {"$set": fields})


async def followed(rig: Rig, leadership: Leadership) -> tuple[Term, Term]:
    """A leader whose lease ended, and the one who came after it."""
    former = await elected(leadership, "former")
    await edit(rig, expiresAt=LONG_AGO)
    return former, await elected(leadership, "newer")


async def test_of_two_candidates_one_leads_and_the_other_is_told_for_how_long(leadership: Leadership) -> None:
    await elected(leadership, "one")
    answer = await leadership.acquire("two", LEASE)
    assert isinstance(answer, Vacancy)
    assert answer.by == "one"
    assert timedelta() < answer.ends_in <= LEASE


async def test_every_election_begins_a_higher_term(rig: Rig, leadership: Leadership) -> None:
    first = await elected(leadership)
    await edit(rig, expiresAt=LONG_AGO)
    assert (await elected(leadership)).number > first.number


async def test_a_term_is_not_lower_when_the_globals_were_lost(rig: Rig, leadership: Leadership) -> None:
    first = await elected(leadership)
    await rig.db.drop_collection(rig.globals.collection)
    assert (await elected(leadership)).number > first.number


async def test_a_term_grows_though_the_clock_of_a_new_primary_is_behind(
    rig: Rig, leadership: Leadership
) -> None:
    await elected(leadership)
    ahead = 2**51
    await edit(rig, expiresAt=LONG_AGO, term=ahead)
    assert (await elected(leadership)).number == ahead + 1


@pytest.mark.parametrize("nonsense", [{"term": "x"}, {"expiresAt": "x"}, {"term": None, "expiresAt": None}])
async def test_nonsense_in_the_leaders_document_ends_no_election(
    rig: Rig, leadership: Leadership, nonsense: Document
) -> None:
    await elected(leadership)
    await edit(rig, **{"expiresAt": LONG_AGO, **nonsense})
    await elected(leadership)


async def test_who_resigns_is_followed_at_once(leadership: Leadership) -> None:
    await leadership.resign(await elected(leadership, "one"))
    await elected(leadership, "two")


async def test_a_former_leader_does_not_move_the_position(rig: Rig, leadership: Leadership) -> None:
    former, newer = await followed(rig, leadership)
    await leadership.save(newer, {"at": "newer"})
    with pytest.raises(LeadershipLostError):
        await leadership.save(former, {"at": "former"})
    assert await leadership.saved() == {"at": "newer"}


async def test_a_former_leader_neither_renews_nor_ends_the_lease_of_the_newer(
    rig: Rig, leadership: Leadership
) -> None:
    former, newer = await followed(rig, leadership)
    before = await stored(rig)
    assert not await renew(rig.client, rig.globals, former, LEASE, BOUND)
    await leadership.resign(former)
    assert await stored(rig) == before
    assert await renew(rig.client, rig.globals, newer, 2 * LEASE, BOUND)
    assert (await stored(rig))["expiresAt"] > before["expiresAt"]


async def test_an_earlier_term_of_the_same_owner_is_a_former_leader_too(
    rig: Rig, leadership: Leadership
) -> None:
    earlier = await elected(leadership)
    await edit(rig, expiresAt=LONG_AGO)
    await elected(leadership)
    with pytest.raises(LeadershipLostError):
        await leadership.save(earlier, {"at": "earlier"})
