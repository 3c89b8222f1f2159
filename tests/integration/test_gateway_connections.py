"""Slow, silent and many callers, at a real gateway that needs no scheduler for them."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.integration.daemons import Daemon, Daemons, until

WAIT_S = 60
BODY = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n"


@pytest.fixture
def places() -> dict[str, object]:
    return {"max_connections": 4, "max_connections_per_address": 2, "keep_alive_s": 60}


def started(daemons: Daemons, run_folder: Path, **flags: object) -> Daemon:
    own = {"scheduler": f"unix:{run_folder}/nobody", "port": 0}
    return daemons.start("aegaeon.http", {**own, **flags}).wait_ready()


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(sockets: ExitStack, daemon: Daemon, source: str = "127.0.0.1") -> socket.socket:
    host, _, port = daemon.address.rpartition(":")
    made = socket.create_connection((host, int(port)), WAIT_S, (source, 0))
    return sockets.enter_context(made)


def read(made: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    data = b""
    while piece := made.recv(65536):
        data += piece
    return data


def code_of(data: bytes) -> tuple[int, str]:
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def metric(daemon: Daemon, name: str) -> float:
    text = httpx.get(f"http://{daemon.address}/metrics", timeout=WAIT_S).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)
    return float(found[1]) if found else 0.0


def working(sockets: ExitStack, daemon: Daemon, source: str) -> socket.socket:
    """A connection in the middle of a body, and the gateway knows."""
    made = connect(sockets, daemon, source)
    made.sendall(BODY + b"expect: 100-continue\r\n\r\n")
    assert made.recv(1024).startswith(b"HTTP/1.1 100")
    return made


def test_heads_and_bodies_that_do_not_come_end_with_408(
    daemons: Daemons, run_folder: Path, sockets: ExitStack
) -> None:
    daemon = started(daemons, run_folder, head_timeout_s=0.2)
    head = connect(sockets, daemon)
    silent = connect(sockets, daemon)
    head.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n")
    assert code_of(read(head)) == (408, "request_timeout")
    assert read(silent) == b""
    daemon.stop()
    daemon = started(daemons, run_folder, body_timeout_s=0.2)
    body = connect(sockets, daemon)
    body.sendall(BODY + b"\r\n12345678")
    assert code_of(read(body)) == (408, "request_timeout")
    assert metric(daemon, 'aegaeon_http_connections_cut_total{reason="body_timeout"}') == 1
    assert "Traceback" not in daemon.log.read_text()


def test_a_caller_that_takes_no_answers_is_dropped(
    daemons: Daemons, run_folder: Path, sockets: ExitStack
) -> None:
    daemon = started(daemons, run_folder, write_timeout_s=0.2)
    made = sockets.enter_context(socket.socket())
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, _, port = daemon.address.rpartition(":")
    made.connect((host, int(port)))
    made.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 500)
    cut = 'aegaeon_http_connections_cut_total{reason="write_timeout"}'
    until(lambda: metric(daemon, cut) == 1, WAIT_S)


def test_idle_connections_make_room_and_working_ones_keep_their_places(
    daemons: Daemons, run_folder: Path, sockets: ExitStack, places: dict[str, object]
) -> None:
    daemon = started(daemons, run_folder, **places)
    url = f"http://{daemon.address}/health"
    idle = [connect(sockets, daemon) for _ in range(20)]
    assert [read(one) for one in idle[:-2]] == [b""] * 18
    first = working(sockets, daemon, "127.0.0.1")
    assert httpx.get(url, timeout=WAIT_S).status_code == 200
    second = working(sockets, daemon, "127.0.0.1")
    beyond = code_of(read(connect(sockets, daemon)))
    assert beyond == (503, "too_many_connections")
    third, fourth = (working(sockets, daemon, "127.0.0.2") for _ in range(2))
    stranger = read(connect(sockets, daemon, "127.0.0.3"))
    assert code_of(stranger) == (503, "too_many_connections")
    assert b"--max-connections)" in stranger
    for one in (first, second, third, fourth):
        one.sendall(b"123456789")
        assert one.recv(65536).startswith(b"HTTP/1.1 400")
    assert httpx.get(url, timeout=WAIT_S).status_code == 200


def test_limits_that_contradict_each_other_are_told(daemons: Daemons, run_folder: Path) -> None:
    flags = {"max_connections": 4, "max_connections_per_address": 5}
    own = {"scheduler": f"unix:{run_folder}/nobody", "port": 0}
    said = daemons.start("aegaeon.http", {**own, **flags}).wait_failed()
    assert "--max-connections-per-address 5 is more than --max-connections" in said
    assert "Traceback" not in said
