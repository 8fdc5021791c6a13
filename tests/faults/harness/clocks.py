"""Wrong clocks: a library that is loaded before the C library's, and the file that says how wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("shifted_clock.c")


class ShiftedClock:
    """The machine's date as some processes see it. It may jump while they run."""

    def __init__(self, folder: Path, name: str, seconds: int) -> None:
        self._library = _built(folder)
        self._file = folder / f"{name}.offset"
        self.seconds = seconds
        self.set(seconds)

    def set(self, seconds: int) -> None:
        """So far from the truth from now on."""
        self.seconds = seconds
        # Replaced in one step: who reads half a number has another clock.
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(seconds), encoding="ascii")
        fresh.replace(self._file)

    @property
    def environment(self) -> dict[str, str]:
        """What a process is to be started with."""
        return {"LD_PRELOAD": str(self._library), "SHIFTED_CLOCK": str(self._file)}


def _built(folder: Path) -> Path:
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")
    library = folder / "shifted_clock.so"
    if not library.exists():
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True)
    return library
