"""The peer: ``mongodash`` from npm, at a pinned version, run by a small script of ours on the same server."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

from bench.lab import Lab
from bench.model import AbsentError, Sample

_HERE = Path(__file__).parent / "peers"
_PATIENCE = 180.0


async def mongodash(lab: Lab, what: str, count: int, slots: int) -> Sample:
    """One measurement of the script: ``latency``, ``burst`` or ``backlog``."""
    node = await _installed()
    async with lab.database() as database:
        arguments = [lab.uri_for(database.name), what, str(count), str(slots)]
        process = await asyncio.create_subprocess_exec(
            node,
            str(_HERE / "mongodash.cjs"),
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_PATIENCE):
                out, complaint = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        raise AbsentError(f"the script of the peer failed: {''.join(last)[:120]}")
    return {name: float(value) for name, value in json.loads(out.splitlines()[-1]).items()}


async def _installed() -> str:
    """Node's path, with the peer's packages in place."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise AbsentError("node and npm are not here")
    if not (_HERE / "node_modules" / "mongodash").is_dir():
        install = await asyncio.create_subprocess_exec(
            npm,
            "install",
            "--no-audit",
            "--no-fund",
            "--no-package-lock",
            cwd=_HERE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        if await install.wait():
            raise AbsentError("npm could not install the peer")
    return node
