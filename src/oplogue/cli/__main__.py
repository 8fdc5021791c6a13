"""``python -m oplogue.cli`` is ``oplogue``."""

from __future__ import annotations

from oplogue.cli import main

main()
