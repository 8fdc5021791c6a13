"""Every Python block of the README and of the documents runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_of(page: str) -> str:
    """The page's blocks, one after the other, as a reader would paste them."""
    return "\n".join(_BLOCK.findall((ROOT / page).read_text(encoding="utf-8")))


def run(code: str, folder: Path, uri: str) -> subprocess.CompletedProcess[str]:
    script = folder / "pasted.py"
    script.write_text(code, encoding="utf-8")
    # App() finds the test's database, so that pages need not start a server of their own.
    environment = {**os.environ, "OPLOGUE_MONGODB_URI": uri, "PYTHONWARNINGS": "error", "DOCUMENTS": "3000"}
    return subprocess.run(
        [sys.executable, script.name], cwd=folder, env=environment, capture_output=True, text=True, timeout=90
    )


def test_the_example_of_the_readme_does_what_the_readme_says(tmp_path: Path, database_uri: str) -> None:
    ended = run(code_of("README.md"), tmp_path, database_uri)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "shipping 1: 5 to Ada\n"
    assert f"`{ended.stdout.strip()}`" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in PAGES if page != "README.md"])
def test_python_blocks_of_a_page_run(page: str, tmp_path: Path, database_uri: str) -> None:
    ended = run(code_of(page), tmp_path, database_uri)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("page", [*PAGES, "ARCHITECTURE.md", "CHANGELOG.md"])
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", text)
    missing = [target for target in targets if not ((ROOT / page).parent / target).exists()]
    assert not missing
