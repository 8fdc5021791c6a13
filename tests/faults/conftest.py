"""The fault matrix: real servers, real worker processes, one oracle. Rows run alone: ``make faults ROW=3``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness.report import HEADER, LINES, Report
from harness.scene import Scene

from oplogue.embedded import EmbeddedServer, start_embedded

TEST_COMMANDS = ("--setParameter", "enableTestCommands=1")
MakeScene = Callable[..., Scene]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="the full counts of the fault matrix")
    parser.addoption("--row", default="", help="only these rows of the fault matrix, separated by commas")
    parser.addoption("--minutes", type=float, default=None, help="run the soak, for so long")
    parser.addoption("--seed", type=int, default=None, help="the seed of the fault matrix")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--seed", default=None) is None:
        config.option.seed = int.from_bytes(os.urandom(2), "big")
    config.addinivalue_line("markers", "faults: a row of the fault matrix")
    config.addinivalue_line("markers", "row(number, title): which row of the fault matrix this is")


def pytest_report_header(config: pytest.Config) -> str:
    return f"fault matrix: --seed {config.getoption('--seed')}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    rows = [row for row in str(config.getoption("--row", default="")).split(",") if row]
    kept: list[pytest.Item] = []
    for item in items:
        if not item.path.is_relative_to(here):
            kept.append(item)
            continue
        item.add_marker(pytest.mark.faults)
        item.add_marker(pytest.mark.timeout(_limit(config)))
        soaks = config.getoption("--minutes", default=None) is not None
        if soaks == ("soak" in item.nodeid) and (not rows or _is_of(item, rows)):
            kept.append(item)
    items[:] = kept


def _limit(config: pytest.Config) -> float:
    """Seconds that a row may take."""
    minutes: float | None = config.getoption("--minutes", default=None)
    if minutes is not None:
        return 60 * minutes + 900
    return 1800 if config.getoption("--full", default=False) else 120


def _is_of(item: pytest.Item, rows: list[str]) -> bool:
    """``2`` means all parts of row 2, ``2t`` one of them."""
    marker = item.get_closest_marker("row")
    if marker is None:
        return False
    number = str(marker.args[0])
    return number in rows or re.sub(r"\D.*", "", number) in rows


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LINES:
        terminalreporter.section("fault matrix")
        for line in [HEADER, *LINES]:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether the full counts are wanted."""
    return bool(request.config.getoption("--full", default=False))


@pytest.fixture(scope="session")
def minutes(request: pytest.FixtureRequest) -> float:
    """How long the soak takes."""
    given: float | None = request.config.getoption("--minutes")
    assert given is not None, "the soak is chosen by it"
    return given


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run, printed first and with every figure."""
    given: int | None = request.config.getoption("--seed")
    assert given is not None, "chosen when the tests are configured"
    return given


_PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the row has passed: its figures count only then."""
    said = yield
    if said.when == "call":
        item.stash[_PASSED] = said.passed
    return said


@pytest.fixture
def report(request: pytest.FixtureRequest, seed: int, full: bool) -> Iterator[Report]:
    """The report of this row."""
    marker = request.node.get_closest_marker("row")
    assert marker is not None, "a test of the fault matrix names its row"
    number, title = marker.args
    report = Report(number, title, seed=seed, full=full)
    yield report
    if not request.node.stash.get(_PASSED, False):
        report.withdraw()


@pytest.fixture(scope="session")
def one_member() -> Iterator[EmbeddedServer]:
    """A replica set of one for the matrix alone, which rows may not damage."""
    with start_embedded(extra_args=TEST_COMMANDS) as server:
        yield server


@pytest.fixture(scope="session")
def three_members() -> Iterator[EmbeddedServer]:
    """A replica set of three; rows bring back what they killed."""
    with start_embedded(members=3, extra_args=TEST_COMMANDS) as server:
        yield server


@pytest.fixture
def scene(one_member: EmbeddedServer, tmp_path: Path, report: Report) -> Iterator[Scene]:
    """A row on the server of one member."""
    with Scene(one_member, tmp_path, report) as scene:
        yield scene


@pytest.fixture
def scene_of_three(three_members: EmbeddedServer, tmp_path: Path, report: Report) -> Iterator[Scene]:
    """A row on the server of three members."""
    with Scene(three_members, tmp_path, report) as scene:
        yield scene


@pytest.fixture
def scene_on(tmp_path: Path, report: Report) -> Iterator[MakeScene]:
    """Makes a row's scene on a server of its own."""
    scenes: list[Scene] = []

    def make(server: EmbeddedServer) -> Scene:
        scenes.append(Scene(server, tmp_path, report))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.close()
