"""The development server: how it is found, what it keeps, and that it never outlives who started it."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import NetworkTimeout

from oplogue.embedded import EmbeddedServer, find_mongod, start_embedded
from oplogue.errors import EmbeddedServerError

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

RUNS = "echo 'db version v7.0.0'"
LACKS_LIBCURL = (
    "echo 'mongod: error while loading shared libraries: libcurl.so.4: no such file' >&2; exit 127"
)


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with start_embedded() as started:
        yield started


class TestFind:
    @pytest.fixture(autouse=True)
    def nothing_chosen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OPLOGUE_MONGOD", raising=False)

    def test_find_takes_the_chosen_one_then_path_then_the_wheel(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chosen, on_path = script(tmp_path / "chosen", RUNS), script(tmp_path / "bin" / "mongod", RUNS)
        monkeypatch.setenv("OPLOGUE_MONGOD", str(chosen))
        monkeypatch.setenv("PATH", str(on_path.parent), prepend=os.pathsep)
        assert find_mongod() == chosen
        monkeypatch.delenv("OPLOGUE_MONGOD")
        assert find_mongod() == on_path
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "site-packages" in find_mongod().parts

    def test_find_refuses_a_chosen_one_that_does_not_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPLOGUE_MONGOD", str(script(tmp_path / "chosen", "echo broken >&2; exit 3")))
        with pytest.raises(
            EmbeddedServerError, match=r"OPLOGUE_MONGOD \(.*chosen\): --version ended with 3: broken"
        ):
            find_mongod()
        monkeypatch.setenv("OPLOGUE_MONGOD", str(tmp_path / "nothing"))
        with pytest.raises(EmbeddedServerError, match="no such file"):
            find_mongod()

    def test_find_passes_over_a_broken_one_on_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broken = script(tmp_path / "mongod", "exit 1")
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        assert find_mongod() != broken

    def test_find_names_three_ways_out_and_what_it_tried(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script(tmp_path / "mongod", LACKS_LIBCURL)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setattr("oplogue.embedded.mongod._WHEELS", ("no-such-wheel",))
        with pytest.raises(EmbeddedServerError) as refused:
            find_mongod()
        for part in (
            "OPLOGUE_MONGOD",
            "on PATH",
            "oplogue[embedded]",
            str(tmp_path),
            "apt-get install libcurl4",
        ):
            assert part in str(refused.value)

    @linux_only
    def test_find_names_every_missing_library(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        crippled = tmp_path / "mongod"
        content = find_mongod().read_bytes()
        crippled.write_bytes(
            content.replace(b"libm.so.6\0", b"libm.so.9\0").replace(b"libc.so.6\0", b"libc.so.9\0")
        )
        crippled.chmod(0o755)
        monkeypatch.setenv("OPLOGUE_MONGOD", str(crippled))
        with pytest.raises(EmbeddedServerError, match=r"missing: lib[mc]\.so\.9, lib[mc]\.so\.9$"):
            find_mongod()
        crippled.unlink()  # it is large, and pytest keeps the folders of several runs

    def test_find_gives_a_lost_run_bit_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        chosen = script(tmp_path / "chosen", RUNS)
        chosen.chmod(0o644)
        monkeypatch.setenv("OPLOGUE_MONGOD", str(chosen))
        assert find_mongod() == chosen
        assert os.access(chosen, os.X_OK)


class TestServer:
    async def test_extra_arguments_reach_the_server(
        self, replica_set: EmbeddedServer, client: AsyncMongoClient[dict[str, Any]]
    ) -> None:
        assert await client.admin.command("configureFailPoint", "failCommand", mode="off")
        options = (await client.admin.command("getCmdLineOpts"))["parsed"]
        assert options["net"]["compression"] == {"compressors": "disabled"}
        assert (
            replica_set.uri_for("shop")
            == f"mongodb://127.0.0.1:{replica_set.ports[0]}/shop?replicaSet=oplogue"
        )

    @linux_only
    def test_only_loopback_is_listened_on(self, server: EmbeddedServer) -> None:
        assert listening_addresses(server.ports[0]) == {"0100007F"}

    def test_stop_leaves_nothing_and_may_be_repeated(self, server: EmbeddedServer) -> None:
        member = server.members[0]
        assert member.alive
        server.stop()
        server.stop()
        assert not member.alive
        assert not member.log_path.parent.exists()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", member.port))
        server.check()  # it was meant to end

    def test_terminal_signals_do_not_reach_it(self, server: EmbeddedServer) -> None:
        assert os.getsid(server.members[0].pid) != os.getsid(0)

    def test_it_survives_the_thread_that_started_it(self) -> None:
        started: list[EmbeddedServer] = []
        thread = threading.Thread(target=lambda: started.append(start_embedded()))
        thread.start()
        thread.join()
        with started[0] as server, MongoClient[dict[str, Any]](server.uri) as client:
            assert client.admin.command("ping")["ok"]

    def test_a_frozen_server_is_silent_until_it_thaws(self, server: EmbeddedServer) -> None:
        with MongoClient[dict[str, Any]](server.uri, socketTimeoutMS=300, retryReads=False) as client:
            client.admin.command("ping")
            server.members[0].freeze()
            with pytest.raises(NetworkTimeout):
                client.admin.command("ping")
            server.members[0].thaw()
        with MongoClient[dict[str, Any]](server.uri) as client:
            assert client.admin.command("ping")["ok"]

    def test_an_option_it_does_not_know_is_told(self) -> None:
        with pytest.raises(EmbeddedServerError, match="noSuchParameter"):
            start_embedded(extra_args=("--setParameter", "noSuchParameter=1"))

    def test_a_number_of_members_that_makes_no_set_is_refused(self) -> None:
        with pytest.raises(EmbeddedServerError, match="members=2"):
            start_embedded(members=2)

    def test_death_by_itself_is_told_with_the_end_of_the_log(self, server: EmbeddedServer) -> None:
        server.check()
        os.kill(server.members[0].pid, signal.SIGABRT)
        server.members[0].await_end()
        with pytest.raises(EmbeddedServerError, match=r"signal 6.*\n.*Got signal: 6") as died:
            server.check()
        assert str(server.members[0].log_path) in str(died.value)


class TestKeptData:
    def test_the_next_start_finds_data_on_the_same_port(self, tmp_path: Path) -> None:
        with start_embedded(data=tmp_path) as server:
            write(server)
        with start_embedded(data=tmp_path) as again:
            assert again.ports == server.ports
            assert count(again) == 1

    def test_the_next_start_finds_data_on_another_port(self, tmp_path: Path) -> None:
        with start_embedded(data=tmp_path / "kept") as server:
            write(server)
        with taken_by_another(server.ports, tmp_path), start_embedded(data=tmp_path / "kept") as again:
            assert again.ports != server.ports
            assert count(again) == 1
            write(again)

    @pytest.mark.slow
    @pytest.mark.replica3
    def test_three_members_find_their_data_on_other_ports(self, tmp_path: Path) -> None:
        with start_embedded(members=3, data=tmp_path / "kept") as server:
            write(server)
        taken = server.ports[:1]
        with taken_by_another(taken, tmp_path), start_embedded(members=3, data=tmp_path / "kept") as again:
            assert set(again.ports) & set(server.ports) == set(server.ports[1:])
            assert count(again) == 1
            write(again)

    def test_a_folder_in_use_is_told(self, tmp_path: Path) -> None:
        with start_embedded(data=tmp_path) as server:
            with pytest.raises(EmbeddedServerError, match="lock"):
                start_embedded(data=tmp_path)
            write(server)
            assert count(server) == 1

    def test_a_folder_of_one_member_is_not_opened_as_three(self, tmp_path: Path) -> None:
        start_embedded(data=tmp_path).stop()
        with pytest.raises(EmbeddedServerError, match="replica set of 1"):
            start_embedded(data=tmp_path, members=3)


@pytest.mark.replica3
class TestThreeMembers:
    def test_they_survive_a_killed_primary(self, replica_set_of_three: EmbeddedServer) -> None:
        with MongoClient[dict[str, Any]](replica_set_of_three.uri) as client:
            events = client.get_database("survival").events
            events.insert_one({})
            address = client.primary
            assert address is not None
            primary = next(one for one in replica_set_of_three.members if one.port == address[1])
            primary.kill()
            events.insert_one({})
            assert client.primary != address
            primary.restart()
            replica_set_of_three.await_ready()
            assert events.count_documents({}) == 2
            client.drop_database("survival")


@linux_only
class TestNoOrphans:
    """Each test starts the server in a real process and kills something of it."""

    @pytest.mark.parametrize("kept", [False, True])
    def test_a_killed_parent_takes_it_along(self, tmp_path: Path, kept: bool) -> None:
        parent, pids, folder = start_elsewhere(f"start_embedded(data={str(tmp_path)!r} if {kept} else None)")
        with ends_of([*pids, *map(parent_of, pids)]) as ends:
            parent.kill()
            parent.communicate()
            await_all(ends)
        assert folder.exists() == kept

    def test_a_killed_parent_takes_three_along(self) -> None:
        parent, pids, folder = start_elsewhere("start_embedded(members=3)")
        assert len(pids) == 3
        with ends_of([*pids, *map(parent_of, pids)]) as ends:
            parent.kill()
            parent.communicate()
            await_all(ends)
        assert not folder.exists()

    def test_a_forked_child_that_lives_on_does_not_keep_it(self) -> None:
        parent, pids, _ = start_elsewhere(
            "start_embedded()", then="import os; child = os.fork(); print(child)"
        )
        assert parent.stdout is not None
        child = int(parent.stdout.readline() or 0) or int(parent.stdout.readline())
        try:
            with ends_of(pids) as ends:
                parent.kill()
                parent.wait()
                await_all(ends)
        finally:
            os.kill(child, signal.SIGKILL)
            parent.communicate()

    def test_a_forked_child_that_exits_does_not_end_it(self) -> None:
        then = "import os; child = os.fork(); child or exit(); os.waitpid(child, 0); server.check(); print(0)"
        parent, pids, _ = start_elsewhere("start_embedded()", then=then)
        assert parent.stdout is not None
        assert parent.stdout.readline() == "0\n"
        os.kill(pids[0], 0)
        parent.communicate("go on")
        assert parent.returncode == 0

    def test_a_killed_guard_takes_it_along(self, server: EmbeddedServer) -> None:
        with ends_of([server.members[0].pid]) as ends:
            os.kill(parent_of(server.members[0].pid), signal.SIGKILL)
            await_all(ends)

    def test_a_parent_that_ends_without_stop_leaves_nothing(self) -> None:
        parent, pids, folder = start_elsewhere("start_embedded()")
        with ends_of(pids) as ends:
            parent.communicate("go on")
            await_all(ends)
        assert parent.returncode == 0
        assert not folder.exists()


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{shutil.which('sh')}\n{body}\n")
    path.chmod(0o755)
    return path


def taken_by_another(ports: Sequence[int], folder: Path) -> EmbeddedServer:
    """Another server on just these ports."""
    (folder / "other").mkdir()
    (folder / "other" / "ports.json").write_text(json.dumps(ports))
    other = start_embedded(data=folder / "other")
    assert other.ports == tuple(ports)
    return other


def write(server: EmbeddedServer) -> None:
    with MongoClient[dict[str, Any]](server.uri) as client:
        client.get_database("shop").orders.insert_one({})


def count(server: EmbeddedServer) -> int:
    with MongoClient[dict[str, Any]](server.uri) as client:
        return client.get_database("shop").orders.count_documents({})


def listening_addresses(port: int) -> set[str]:
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    local = [row[1].split(":") for row in rows if row[3] == "0A"]
    return {address for address, number in local if int(number, 16) == port}


def start_elsewhere(call: str, then: str = "") -> tuple[subprocess.Popen[str], list[int], Path]:
    """A process that starts a server and waits for its input to close; the members' ids; their folder."""
    code = f"""
import sys
from oplogue.embedded import start_embedded
server = {call}
print(*(member.pid for member in server.members), flush=True)
print(server.members[0].log_path.parent, flush=True)
{then}
sys.stdout.flush()
sys.stdin.read()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    return process, pids, Path(process.stdout.readline().strip())


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class ends_of:  # noqa: N801 - reads as a verb in a with statement
    """Handles that become readable when the processes end."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids

    def __enter__(self) -> list[int]:
        self._handles = [os.pidfd_open(pid) for pid in self._pids]
        return self._handles

    def __exit__(self, *exc_info: object) -> None:
        for handle in self._handles:
            os.close(handle)


def await_all(handles: list[int]) -> None:
    for handle in handles:
        assert select.select([handle], [], [], 30)[0], "it still runs"
