"""Finds and runs a MongoDB server for development and tests. Not for production: no password, loopback only.

Who ends whom
-------------
A server must not outlive the process that started it, whatever ends that process::

    parent ──pipe──> guard ──fork──> mongod        one guard for each member

The guard (`guard.py`) is a bare interpreter, ready in some 30 ms. It starts mongod and then waits for the
first of these: mongod ends; the pipe from the parent says stop or closes; the parent's process ends (Linux: a
pidfd, because a forked child of the parent may still hold the pipe). In the last two cases it ends mongod and
removes its temporary folder. The kernel closes the pipe of a process that was killed with SIGKILL too.

Linux could send mongod a signal when its parent dies, but that signal fires when the *thread* that forked
ends (``asyncio.to_thread``!), and asking for it runs Python between fork and exec, unsafe in a process with
threads. Neither holds in the guard: it forks from its main thread, before it starts others. So mongod asks
for the signal of its guard, and even a killed guard leaves no server behind (on Linux; elsewhere it would).

Guard and server live in a session of their own: Ctrl-C in a terminal reaches the parent alone, which still
has its database while it stops.

Kept data
---------
``data=folder`` keeps ``ports.json`` beside the members' folders. A later start takes the same ports; if one
is taken, the set gets a forced configuration with new ones. (The other way, to run each member alone and
rewrite its configuration, is not safe: what a server writes by itself then makes it crash as a member.)
Servers with kept data are asked to stop, which takes about a second; those with temporary data are killed.
"""

from __future__ import annotations

from oplogue.embedded.member import EmbeddedMember
from oplogue.embedded.mongod import find_mongod
from oplogue.embedded.server import EmbeddedServer, start_embedded

__all__ = ["EmbeddedMember", "EmbeddedServer", "find_mongod", "start_embedded"]
