"""Asking a server over HTTP: a made-up one that answers, refuses, breaks off or is silent."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from offload.engine.ports import held_port, is_reachable, reserved_ports
from offload.engine.serving import server_api
from offload.engine.serving.server_api import (
    Address,
    Health,
    ask_health,
    ask_json,
    stream_completion,
)
from offload.errors import LlamaCppError, UsageError


class Handler(BaseHTTPRequestHandler):
    """Answers by path; what it was asked is kept in the server."""

    server: Any

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        """The status of the server, or a document."""
        self.server.seen.append((self.path, self.headers.get("Authorization")))
        if self.path.endswith("/health"):
            self.send_response(self.server.status)
            self.end_headers()
        else:
            self.answer(200, {"path": self.path})

    def do_POST(self) -> None:
        """A refusal, a stream, or a stream cut short."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("refuse"):
            self.answer(400, {"error": {"message": "the prompt is too long"}})
            return
        self.send_response(200)
        self.end_headers()
        for i in range(3):
            self.wfile.write(b"data: %s\n\n" % json.dumps({"i": i, "stop": i == 2}).encode())
            if body.get("fail"):
                self.wfile.write(b'data: {"error": {"message": "compute failed"}}\n\n')
        self.wfile.write(b"data: [DONE]\n\n")
        if body.get("hold"):
            self.wfile.flush()
            self.server.released.wait(30)

    def answer(self, status: int, value: Any) -> None:
        """A JSON document."""
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def fake() -> Iterator[Any]:
    """A server on a free loopback port."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.status, server.seen, server.released = 200, [], threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


def address_of(server: Any, **more: Any) -> Address:
    """Where it listens."""
    return Address(host="127.0.0.1", port=server.server_address[1], **more)


@pytest.mark.parametrize(
    ("status", "health"),
    [(200, Health.READY), (503, Health.LOADING), (404, Health.SILENT), (500, Health.SILENT)],
)
def test_health_by_status(fake: Any, status: int, health: Health) -> None:
    """Only 200 is ready; a server of somebody else that answers 404 is not."""
    fake.status = status
    assert ask_health(address_of(fake)) is health


def test_nobody_there_is_silence() -> None:
    """A refused connection is an answer."""
    with reserved_ports(1) as (port,):
        assert ask_health(Address(host="127.0.0.1", port=port.number)) is Health.SILENT


@pytest.mark.parametrize("said", [b"HTTP/1.1 200 OK", b"x" * 13, b"", b"HTTP/1.1 2xx", b"\xff"])
def test_garbage_and_dribble_are_silence(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever answers there, one byte now and then or nonsense, is not waited for."""
    monkeypatch.setattr(server_api, "_HEALTH_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stop = threading.Event()

        def dribble() -> None:
            with listening.accept()[0] as client:
                for byte in said:
                    client.sendall(bytes([byte]))
                    if stop.wait(0.1):
                        return

        thread = threading.Thread(target=dribble)
        thread.start()
        address = Address(host="127.0.0.1", port=listening.getsockname()[1])
        assert ask_health(address) is Health.SILENT
        stop.set()
        thread.join()


def test_prefix_and_key_are_used_and_no_proxy(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's proxy is for other machines."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    address = address_of(fake, prefix="/v", api_key="k")
    assert ask_health(address) is Health.READY
    assert ask_json(address, "/props") == {"path": "/v/props"}
    assert fake.seen == [("/v/health", "Bearer k"), ("/v/props", "Bearer k")]


def test_a_stream_of_events(fake: Any) -> None:
    """Every event, and the end."""
    events = list(stream_completion(address_of(fake), {}, quiet_max_s=10))
    assert [event["i"] for event in events] == [0, 1, 2]


@pytest.mark.parametrize(
    ("body", "says"),
    [({"refuse": True}, "the prompt is too long"), ({"fail": True}, "compute failed")],
)
def test_what_the_server_says_is_passed_on(fake: Any, body: dict[str, Any], says: str) -> None:
    """Its own words, in our error."""
    with pytest.raises(LlamaCppError, match=says):
        list(stream_completion(address_of(fake), body, quiet_max_s=10))
    if "refuse" in body:
        with pytest.raises(LlamaCppError, match=says):
            ask_json(address_of(fake), "/tokenize", body)


def test_silence_of_a_stream_is_bounded(fake: Any) -> None:
    """A server that holds the line without a word is given up on."""
    with pytest.raises(LlamaCppError, match="no answer in time"):
        list(stream_completion(address_of(fake), {"hold": True}, quiet_max_s=0.2))


def test_another_thread_can_hang_up(fake: Any) -> None:
    """Whoever waits for the next event is released at once."""
    hang_ups: list[Any] = []
    events = stream_completion(
        address_of(fake), {"hold": True}, quiet_max_s=60, on_open=hang_ups.append
    )
    assert next(events)["i"] == 0
    threading.Timer(0.1, hang_ups[0]).start()
    assert [event["i"] for event in events] == [1, 2]


def test_a_port_is_held_and_found_in_use() -> None:
    """Any free one for 0; one that somebody listens at is refused, one that is held is not lost."""
    with held_port("127.0.0.1", 0) as number:
        assert number > 0
        assert not is_reachable(f"127.0.0.1:{number}")
    with (
        reserved_ports(1) as (port,),
        held_port("127.0.0.1", port.number) as again,
    ):
        assert again == port.number


@pytest.mark.parametrize("option", ["SO_REUSEADDR", "SO_REUSEPORT"])
def test_servers_old_and_new_may_have_a_held_port(option: str) -> None:
    """llama-server sets one of the two options, by its age; without any the port stays ours."""
    with held_port("127.0.0.1", 0) as number:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, getattr(socket, option), 1)
            server.bind(("127.0.0.1", number))
            server.listen()
            assert is_reachable(f"127.0.0.1:{number}")
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", number))


@pytest.mark.parametrize(
    ("host", "port", "says"),
    [
        ("127.0.0.1", 65536, "0 to 65535"),
        ("127.0.0.1", -1, "0 to 65535"),
        ("192.0.2.1", 8080, "no address of this machine"),
        ("no.such.host.invalid", 8080, "--host no.such.host.invalid"),
    ],
)
def test_addresses_that_cannot_be_had(host: str, port: int, says: str) -> None:
    """One clear sentence with the flag."""
    with pytest.raises(UsageError, match=says), held_port(host, port):
        pass


def test_a_port_in_use(fake: Any) -> None:
    """It names the port and what to try."""
    port = fake.server_address[1]
    with (
        pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is in use; .*--port"),
        held_port("127.0.0.1", port),
    ):
        pass


@pytest.mark.parametrize("endpoint", ["127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999"])
def test_what_is_no_endpoint_is_not_reachable(endpoint: str) -> None:
    """Texts from a saved plan must not raise."""
    assert not is_reachable(endpoint)
