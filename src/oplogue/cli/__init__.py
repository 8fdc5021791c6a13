"""The command line: ``oplogue COMMAND``.

Exit codes: 0 all is well, 1 the operation found something wrong, 2 wrong usage, 130 interrupted. Errors are one
line on standard error; ``--debug`` shows where they come from. Each command is a module of
`oplogue.cli.commands`; nothing that a command needs is imported before it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_EXTRA = {"typer", "rich", "click", "shellingham"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    try:
        from oplogue.cli.program import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print(f"oplogue: {error.name} is missing; pip install 'oplogue[cli]'", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # while modules are read
        sys.exit(130)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))
