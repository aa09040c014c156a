"""The server under the gateway gives up connections that do not finish their headers, and no others."""

import asyncio
import socket
import threading
import time

import pytest

pytest.importorskip("flwr")

import uvicorn

from wardround.flower.server.gateway_server import protocol_with_deadline
from wardround.flower.server.refusal_log import RefusalLog

pytestmark = pytest.mark.slow

SECONDS = 0.5
REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"


async def slow_echo(scope, receive, send):
    """Answers later than headers may take."""
    body = (await receive())["body"]
    await asyncio.sleep(2 * SECONDS if body == b"ho" else 0)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def served():
    lines = []
    protocol = protocol_with_deadline(RefusalLog(lines.append), SECONDS)
    server = uvicorn.Server(
        uvicorn.Config(
            slow_echo, port=0, http=protocol, lifespan="off", log_level="error", timeout_keep_alive=30
        )
    )
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=[[listener]], daemon=True)
    thread.start()
    yield listener.getsockname(), lines
    server.should_exit = True
    thread.join(120)


def answered(connection, body):
    connection.settimeout(120)
    content = b""
    while not content.endswith(b"\r\n\r\n" + body):
        part = connection.recv(1000)
        if not part:
            return False
        content += part
    return True


def is_closed(connection, seconds=120):
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize("sent", [b"", b"POST / HTTP/1.1\r\nHost: x\r\n"])
def test_headers_that_do_not_end_are_given_up(served, sent):
    address, lines = served
    with socket.create_connection(address) as connection:
        connection.sendall(sent)
        assert is_closed(connection)
    assert lines == [f"refused 127.0.0.1: a connection without a whole request for {SECONDS:g} s"]


def test_so_are_those_of_a_second_request(served):
    address, lines = served
    with socket.create_connection(address) as connection:
        connection.sendall(REQUEST + b"hi")
        assert answered(connection, b"hi")
        connection.sendall(REQUEST[:20])
        assert is_closed(connection)
    assert len(lines) == 1


def test_a_slow_answer_and_an_idle_connection_are_not(served):
    address, lines = served
    with socket.create_connection(address) as connection:
        for body in (b"ho", b"hi", b"ho"):
            connection.sendall(REQUEST)
            time.sleep(2 * SECONDS)  # a body may take its time: whose it is was checked
            connection.sendall(body)
            assert answered(connection, body)
            assert not is_closed(connection, 1.5 * SECONDS)
    assert lines == []
