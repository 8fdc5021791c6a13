"""Standard input with somebody before it."""

from __future__ import annotations

from io import StringIO


class Typed(StringIO):
    """What they type."""

    def isatty(self) -> bool:
        """They can be asked."""
        return True
