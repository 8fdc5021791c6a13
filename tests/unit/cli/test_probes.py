"""The small HTTP server: what it answers, what it refuses, and what no client can make it do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from oplogue.cli import probes
from oplogue.cli.options import address
from oplogue.cli.probes import Answer, Probes
from oplogue.clock import Clock
from oplogue.errors import ConfigurationError

ANSWERS = {
    "/live": lambda: Answer(HTTPStatus.OK, b"well\n"),
    "/ready": lambda: Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"{}", "application/json"),
}


@pytest.fixture
def port() -> Iterator[int]:
    """Where the server listens."""
    with Probes("127.0.0.1", 0, ANSWERS, Clock()) as server:
        yield server.port


def sent(port: int, request: str) -> tuple[str, dict[str, str], str]:
    """The status line, the fields and the body that come back until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(request.encode())
        received = b"".join(iter(lambda: client.recv(4096), b"")).decode()
    head, _, body = received.partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines), body


def test_a_path_is_answered_with_status_type_and_length(port: int) -> None:
    first, fields, body = sent(port, "GET /ready?verbose HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (first, body) == ("HTTP/1.1 503 Service Unavailable", "{}")
    assert fields["Content-Type"] == "application/json"
    assert fields["Content-Length"] == "2"
    assert fields["Connection"] == "close"


@pytest.mark.parametrize("target", ["/live", "http://somewhere/live"])
def test_the_target_is_a_path_or_a_whole_address(port: int, target: str) -> None:
    assert sent(port, f"GET {target} HTTP/1.0\r\n\r\n")[2] == "well\n"


def test_head_gets_the_fields_without_the_body(port: int) -> None:
    first, fields, body = sent(port, "HEAD /live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (first, fields["Content-Length"], body) == ("HTTP/1.1 200 OK", "5", "")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ("hello\r\n\r\n", 400),
        ("GET /live HTTP/2.0\r\nHost: x\r\n\r\n", 400),
        ("GET  /live HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("GET /live HTTP/1.1\r\n\r\n", 400),
        ("GET /live HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400),
        ("GET /live HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n", 400),
        ("GET //[ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("GET /é HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        ("GET /live/../x HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        ("POST /live HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        ("GET /live HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 413),
        ("GET /live HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
        (f"GET /live HTTP/1.1\r\nHost: {'x' * 9_000}\r\n\r\n", 431),
    ],
)
def test_what_is_no_plain_request_for_a_path_is_refused(port: int, request_: str, status: int) -> None:
    assert sent(port, request_)[0].startswith(f"HTTP/1.1 {status} ")
    assert sent(port, "GET /live HTTP/1.0\r\n\r\n")[2] == "well\n"


def test_a_refused_method_says_which_are_allowed_and_a_missing_path_which_there_are(port: int) -> None:
    assert sent(port, "PUT /live HTTP/1.1\r\nHost: x\r\n\r\n")[1]["Allow"] == "GET, HEAD"
    assert (
        sent(port, "GET /x HTTP/1.1\r\nHost: x\r\n\r\n")[2]
        == "there is nothing here; there are /live, /ready\n"
    )


def test_a_client_that_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_PATIENCE", 0.05)
    with Probes("127.0.0.1", 0, ANSWERS, Clock()) as server:
        assert sent(server.port, "GET /live HTTP/1.1\r\n") == ("", {}, "")


def test_more_clients_than_there_is_room_for_are_sent_away_and_the_room_comes_back(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_MOST", 1)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as silent:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as turned_away:
            assert turned_away.recv(1) == b""
        silent.sendall(b"GET /live HTTP/1.0\r\n\r\n")
        while silent.recv(4096):
            pass
    assert sent(port, "GET /live HTTP/1.0\r\n\r\n")[2] == "well\n"


def test_an_address_that_is_taken_is_refused(port: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"--health='127.0.0.1:{port}': Address already in use"):
        Probes("127.0.0.1", port, ANSWERS, Clock())


@pytest.mark.parametrize(
    ("text", "found"),
    [("127.0.0.1:8081", ("127.0.0.1", 8081)), ("[::1]:0", ("::1", 0)), ("box:65535", ("box", 65535))],
)
def test_an_address_is_a_host_and_a_port(text: str, found: tuple[str, int]) -> None:
    assert address(text, option="--health") == found


@pytest.mark.parametrize(
    "text", ["", "8081", ":8081", "box:", "box:x", "box:65536", "box:-1", "::1:80", "box:８"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"expected HOST:PORT, such as 127\.0\.0\.1:8081"):
        address(text, option="--health")
