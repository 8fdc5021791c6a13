"""What ``oplogue doctor`` does: a check-up, printed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console as Screen
from rich.text import Text

from oplogue.app import App
from oplogue.cli.failures import OK, WRONG
from oplogue.cli.output import Output
from oplogue.cli.targets import find_app
from oplogue.cli.wording import count_of
from oplogue.errors import ConfigurationError
from oplogue.model.checkup import Finding

_SIGNS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "problem": ("PROBLEM", "red bold")}
_WIDTH = 9


def examine(
    target: str | None, uri: str | None, database: str | None, globals_collection: str, output: Output
) -> int:
    """Check, print what was found, and say by the exit code whether there is a problem."""
    if target is not None and uri is not None:
        raise ConfigurationError(
            "the App names its server itself", option="--uri", value=uri, expected="either it or MODULE:APP"
        )
    here = App(uri, database=database, globals_collection=globals_collection) if target is None else None
    findings = asyncio.run((here or find_app(target or "")).check_up())
    if output.as_json:
        output.write([asdict(finding) for finding in findings], indent=2)
    else:
        # A command that is to be copied must not be broken into lines.
        output.screen.print(_picture(findings, output.screen), highlight=False, soft_wrap=True)
    return WRONG if any(finding.level == "problem" for finding in findings) else OK


def _picture(findings: Sequence[Finding], screen: Screen) -> Text:
    picture = Text()
    for finding in findings:
        sign, style = _SIGNS[finding.level]
        said = Text(f"{finding.check}: ", "bold").append(finding.text, "not bold")
        first, *more = said.wrap(screen, max(screen.width - _WIDTH, 20))
        picture.append(f"{sign:{_WIDTH}}", style).append(first).append("\n")
        for line in more:
            picture.append(" " * _WIDTH).append(line).append("\n")
        if finding.mend is not None:
            picture.append(f"{'':{_WIDTH}}→ {finding.mend}\n", "dim")
    counts = {level: sum(finding.level == level for finding in findings) for level in _SIGNS}
    warnings, problems = count_of(counts["warning"], "warning"), count_of(counts["problem"], "problem")
    return picture.append(f"{counts['ok']} ok, {warnings}, {problems}")
