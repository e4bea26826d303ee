"""The proxy passes what comes, and fails in exactly the way it was told to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.servers.programs import free_port
from tests.servers.proxy import Proxy

PATIENCE = 10.0


class Echo:
    """A server that sends back what it hears, and remembers it."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.was_heard = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"postgresql://ada@127.0.0.1:{self._listener.getsockname()[1]}/work?x=1"
        self._listener.settimeout(0.05)
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def until_heard(self, said: bytes) -> bool:
        with self.was_heard:
            return self.was_heard.wait_for(lambda: bytes(self.heard) == said, PATIENCE)

    def close(self) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                one, _ = self._listener.accept()
            except TimeoutError:
                continue
            self._threads.append(threading.Thread(target=self._answer, args=(one,)))
            self._threads[-1].start()

    def _answer(self, one: socket.socket) -> None:
        with one:
            while chunk := one.recv(65_536):
                with self.was_heard:
                    self.heard += chunk
                    self.was_heard.notify_all()
                one.sendall(chunk)


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.url) as proxy:
        yield proxy
    assert not [thread for thread in threading.enumerate() if thread.name == f"proxy-{proxy.port}"]


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with connected(proxy) as client:
        yield client


def connected(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)


def is_ended(client: socket.socket) -> bool:
    """Whether the other side has hung up; waits for it."""
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def exchange(client: socket.socket, said: bytes) -> bytes:
    """Say it; as many bytes of the reply as come, up to its end."""
    client.sendall(said)
    reply = b""
    while len(reply) < len(said) and (chunk := client.recv(65_536)):
        reply += chunk
    return reply


def test_what_comes_is_passed_on_in_both_directions(client: socket.socket):
    big = bytes(range(256)) * 4_000
    sending = threading.Thread(target=client.sendall, args=(big,))
    sending.start()
    reply = b""
    while len(reply) < len(big) and (chunk := client.recv(65_536)):
        reply += chunk
    sending.join(PATIENCE)
    assert reply == big


def test_its_url_differs_from_the_servers_in_the_address_alone(echo: Echo, proxy: Proxy):
    assert proxy.url == f"postgresql://ada@127.0.0.1:{proxy.port}/work?x=1"


def test_dropped_replies_are_lost_and_the_requests_are_not(echo: Echo, proxy: Proxy, client: socket.socket):
    assert exchange(client, b"one") == b"one"
    proxy.drop_replies()
    client.sendall(b"two")
    assert echo.until_heard(b"onetwo")
    assert proxy.has_dropped.wait(PATIENCE)
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)


def test_so_many_bytes_come_through_and_no_more(proxy: Proxy, client: socket.socket):
    proxy.drop_replies(after_bytes=4)
    client.sendall(b"abc")
    assert exchange(client, b"") == b""
    assert client.recv(3, socket.MSG_WAITALL) == b"abc"
    assert not proxy.has_dropped.is_set()
    client.sendall(b"def")
    assert client.recv(1) == b"d"
    assert proxy.has_dropped.wait(PATIENCE)


def test_replies_come_again(proxy: Proxy, client: socket.socket):
    proxy.drop_replies()
    client.sendall(b"lost")
    assert proxy.has_dropped.wait(PATIENCE)
    proxy.pass_everything()
    assert exchange(client, b"found") == b"found"


def test_a_cut_ends_every_connection_and_new_ones_may_come(proxy: Proxy, client: socket.socket):
    with connected(proxy) as other:
        assert exchange(client, b"x") == exchange(other, b"x") == b"x"
        assert proxy.cut() == 2
        for one in (client, other):
            assert is_ended(one)
    with connected(proxy) as third:
        assert exchange(third, b"again") == b"again"


def test_a_connection_that_its_client_ended_is_forgotten(proxy: Proxy, client: socket.socket):
    with connected(proxy) as other:
        assert exchange(other, b"x") == b"x"
    assert exchange(client, b"x") == b"x"
    end = time.monotonic() + PATIENCE
    while proxy.connections != 1:
        assert time.monotonic() < end


def test_whoever_connects_is_refused_until_everything_passes_again(proxy: Proxy):
    proxy.refuse()
    with connected(proxy) as refused:
        assert refused.recv(1) == b""
    proxy.pass_everything()
    with connected(proxy) as client:
        assert exchange(client, b"x") == b"x"


def test_a_delay_holds_back_both_directions(proxy: Proxy, client: socket.socket):
    assert exchange(client, b"x") == b"x"
    proxy.delay(0.1)
    began = time.monotonic()
    assert exchange(client, b"x") == b"x"
    assert time.monotonic() - began >= 0.2


def test_an_upstream_that_is_not_there_ends_the_connection():
    with Proxy(f"postgresql://127.0.0.1:{free_port()}/x") as proxy, connected(proxy) as client:
        assert client.recv(1) == b""
