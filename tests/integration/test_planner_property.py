"""Random filters over random documents: what is planned is what ``find`` finds, with the values that it watches.

``OPLOGUE_PAIRS`` says how many (filter, document) pairs are compared, ``OPLOGUE_SEED`` which ones; row 24 of the
fault matrix compares ten times as many.
"""

from __future__ import annotations

import os
import random

from tests.support.pairs import compare_pairs

PAIRS = int(os.environ.get("OPLOGUE_PAIRS", "10000"))
SEED = int(os.environ.get("OPLOGUE_SEED", str(random.SystemRandom().getrandbits(32))))


def test_what_is_planned_is_what_the_server_finds(database_uri: str) -> None:
    assert compare_pairs(database_uri, PAIRS, SEED).pairs >= PAIRS
