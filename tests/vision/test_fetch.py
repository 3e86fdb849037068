"""Fetching images: a real server on the loopback, which only these tests may be sent to."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from server.errors import InvalidRequest, ServerBusy
from server.http.body_budget import BodyBudget, charge_current
from server.images.addresses import is_public
from server.images.fetch import Charge, Fetcher, FetchError
from server.images.loader import MOST_FETCHES, MOST_IMAGES, ImageLoader
from server.settings import Settings
from tests.vision.pictures import data_url, quadrants, saved

PICTURE = saved(quadrants(20, 10))
Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


def answer(status: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Site:
    """What a web server was asked, and what it says: by path."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked: list[str] = []
        self.pages: dict[str, bytes] = {}
        self.resolved: list[str] = []
        self.addresses: dict[str, Sequence[str]] = {"images.example": ["127.0.0.1"]}

    def url(self, path: str, host: str = "images.example", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        if host not in self.addresses:
            raise socket.gaierror("unknown")
        return self.addresses[host]

    def fetcher(self) -> Fetcher:
        return Fetcher(self.resolve, lambda address: address == "127.0.0.1")


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            begin = await reader.read(65_536)
            running.asked.append(begin.decode("latin-1"))
            path = begin.split(b" ")[1].decode() if begin.startswith(b"GET ") else ""
            writer.write(running.pages.get(path, b""))
            await writer.drain()
        except OSError:
            pass  # the client has seen enough
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    running = Site(server.sockets[0].getsockname()[1])
    async with server:
        yield running


async def test_an_image_is_fetched_from_the_address_that_was_checked() -> None:
    async with site() as web:
        web.pages["/a.png?x=1"] = answer("200 OK", PICTURE)
        assert await web.fetcher().fetch(web.url("/a.png?x=1"), 10_000) == PICTURE
    (asked,) = web.asked
    assert asked.startswith("GET /a.png?x=1 HTTP/1.1\r\n")
    headers = dict(line.lower().split(": ", 1) for line in asked.strip().split("\r\n")[1:])
    assert headers["host"] == f"images.example:{web.port}"
    assert headers["accept-encoding"] == "identity"
    assert not {"cookie", "authorization"} & headers.keys()
    assert web.resolved == ["images.example"]  # once: a second answer is never asked for


async def test_certificates_are_read_once_and_not_in_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    made: list[object] = []
    real_context, real_client = httpx2.create_ssl_context, httpx2.AsyncClient

    def context(**options: Any) -> ssl.SSLContext:
        threads.append(threading.current_thread())
        return real_context(**options)

    def client(**options: Any) -> httpx2.AsyncClient:
        made.append(options["verify"])
        return real_client(**options)

    monkeypatch.setattr(httpx2, "create_ssl_context", context)
    monkeypatch.setattr(httpx2, "AsyncClient", client)
    async with site() as web:
        web.pages["/a"] = answer("200 OK", PICTURE)
        fetcher = web.fetcher()
        for _ in range(2):
            assert await fetcher.fetch(web.url("/a"), 10_000) == PICTURE
    assert len(threads) == 1 and threads[0] is not threading.current_thread()
    assert made[0] is made[1] and isinstance(made[0], ssl.SSLContext)


async def test_over_tls_the_name_and_not_the_address_is_asked_for() -> None:
    async with site() as web:
        with pytest.raises(FetchError, match="could not be fetched"):
            await web.fetcher().fetch(web.url("/", scheme="https"), 10_000)
    assert "images.example" in web.asked[0]  # in the ClientHello


async def test_redirects_are_followed_and_checked_like_the_first_address() -> None:
    async with site() as web:
        web.pages["/a"] = answer("302 Found", location="/b?c")
        web.pages["/b?c"] = answer("308 Permanent Redirect", location=web.url("/d"))
        web.pages["/d"] = answer("200 OK", PICTURE)
        web.pages["/private"] = answer("302 Found", location="http://169.254.169.254/latest/meta-data")
        web.pages["/named"] = answer("302 Found", location=web.url("/d", host="router.lan"))
        web.pages["/file"] = answer("302 Found", location="file:///etc/passwd")
        web.pages["/round"] = answer("302 Found", location="/round")
        web.addresses["router.lan"] = ["192.168.1.1"]
        fetcher = web.fetcher()
        assert await fetcher.fetch(web.url("/a"), 10_000) == PICTURE
        for path, words in (
            ("/private", "no public address"),
            ("/named", "no public address"),
            ("/file", "http or https"),
            ("/round", "redirected more than"),
        ):
            with pytest.raises(FetchError, match=words):
                await fetcher.fetch(web.url(path), 10_000)
        assert len(web.asked) == 3 + 1 + 1 + 1 + 4


async def test_cookies_are_not_carried_over_a_redirect() -> None:
    async with site() as web:
        web.pages["/a"] = answer("302 Found", location="/b", set_cookie="id=1; Path=/")
        web.pages["/b"] = answer("200 OK", PICTURE)
        assert await web.fetcher().fetch(web.url("/a"), 10_000) == PICTURE
    assert len(web.asked) == 2
    assert "cookie" not in web.asked[1].lower()


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (answer("404 Not Found", b"secret"), "answered 404"),
        (answer("200 OK", PICTURE, content_encoding="gzip"), "compresses"),
        (answer("200 OK", bytes(20_000)), "larger than"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
            + b"1000\r\n"
            + bytes(4096)
            + b"\r\n"
            + b"zz",
            "could not be fetched",
        ),
        (b"SSH-2.0-OpenSSH\r\n", "could not be fetched"),
        (b"", "could not be fetched"),
    ],
)
async def test_answers_that_are_no_image(page: bytes, words: str) -> None:
    async with site() as web:
        web.pages["/a"] = page
        with pytest.raises(FetchError, match=words) as caught:
            await web.fetcher().fetch(web.url("/a"), 10_000)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://images.example/a", "http or https"),
        ("//images.example/a", "http or https"),
        ("gopher:images.example", "http or https"),
        ("", "http or https"),
        ("http://", "http or https"),
        ("http://user:pass@images.example/", "name or password"),
        ("http://unknown.example/", "no public address"),
        ("http://mixed.example/", "no public address"),
        ("http://[::ffff:127.0.0.1]/", "no public address"),
        ("http://[::1]/", "no public address"),
        ("http://10.0.0.1/", "no public address"),
        ("http://" + "a" * 300 + "/", "no public address"),
        ("http://images.example:99999999/", "no address"),
        ("http://exa\0mple/", "no address"),
    ],
)
async def test_addresses_that_are_not_gone_to(url: str, words: str) -> None:
    async with site() as web:
        web.addresses["mixed.example"] = ["127.0.0.1", "10.0.0.1"]
        with pytest.raises(FetchError, match=words):
            await web.fetcher().fetch(url, 10_000)
        assert not web.asked


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1", "2130706433", "0x7f.1", "0", "[::]"])
async def test_this_machine_under_any_name_with_the_system_s_own_resolver(host: str) -> None:
    async with site() as web:
        with pytest.raises(FetchError, match="no public address"):
            await Fetcher().fetch(web.url("/a", host=host), 10_000)
        assert not web.asked


INSIDE = """
0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 169.254.169.254 172.16.0.1 192.168.1.1 192.0.2.1 198.18.0.1 224.0.0.1
239.255.255.250 240.0.0.1 255.255.255.255 :: ::1 fe80::1 fe80::1%eth0 fc00::1 fd00:ec2::254 fec0::1 ff02::1
ff0e::1 2001:db8::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::10.0.0.1 64:ff9b:1::1
2002:7f00:1:: 2002:c0a8:101::1 ::127.0.0.1 nonsense
"""
OUTSIDE = "1.1.1.1 8.8.8.8 93.184.216.34 2606:4700::1111 ::ffff:8.8.8.8 64:ff9b::8.8.8.8"


@pytest.mark.parametrize("address", INSIDE.split())
def test_addresses_of_this_network(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", OUTSIDE.split())
def test_addresses_of_the_internet(address: str) -> None:
    assert is_public(address)


def part(url: str, index: int = 0) -> dict[str, object]:
    return {"type": "image", "index": index, "url": url, "field": f"messages.0.content.{index}"}


async def test_the_loader_fetches_where_that_is_allowed_and_each_address_once() -> None:
    async with site() as web:
        web.pages["/a"] = answer("200 OK", PICTURE)
        loader = ImageLoader(Settings(image_urls=True), web.fetcher())
        images = await loader.load([part(web.url("/a")), part(data_url(PICTURE), 1), part(web.url("/a"), 2)])
        assert [(image.data, image.field) for image in images] == [
            (PICTURE, f"messages.0.content.{index}") for index in range(3)
        ]
        assert len(web.asked) == 1
        with pytest.raises(InvalidRequest, match="RKSERVE_IMAGE_URLS"):
            await ImageLoader(Settings(), web.fetcher()).load([part(web.url("/a"))])
        assert len(web.asked) == 1


async def test_all_images_together_bring_no_more_than_a_body() -> None:
    async with site() as web:
        big = PICTURE + bytes(400_000)  # what follows an image is allowed, and counts
        web.pages |= {path: answer("200 OK", big) for path in ("/a", "/b", "/c")}
        loader = ImageLoader(Settings(image_urls=True, max_body_mb=1), web.fetcher())
        assert len(await loader.load([part(web.url(path), n) for n, path in enumerate(("/a", "/b"))])) == 2
        with pytest.raises(InvalidRequest, match=r"messages\.0\.content\.2 is larger than 0\.237 MB"):
            await loader.load([part(web.url(path), n) for n, path in enumerate(("/a", "/b", "/c"))])


async def test_what_is_fetched_is_taken_from_the_budget_of_requests() -> None:
    seen: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await loader.load([part(web.url("/a"))])
        seen.append(budget.free_bytes)

    async def nothing(*_: object) -> Any:
        raise AssertionError

    async with site() as web:
        web.pages["/a"] = answer("200 OK", PICTURE)
        loader = ImageLoader(Settings(image_urls=True), web.fetcher(), charge_current)
        budget = BodyBudget(app, len(PICTURE) + 5)
        await budget({"type": "http"}, nothing, nothing)
        assert (seen, budget.free_bytes) == ([5], len(PICTURE) + 5)
        budget = BodyBudget(app, len(PICTURE) - 1)
        with pytest.raises(ServerBusy):
            await budget({"type": "http"}, nothing, nothing)
        assert budget.free_bytes == len(PICTURE) - 1


async def test_few_images_are_fetched_at_the_same_time() -> None:
    running = most = 0

    class Counting(Fetcher):
        async def fetch(self, url: str, limit: int, charge: Charge = lambda size: None) -> bytes:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return PICTURE

    loader = ImageLoader(Settings(image_urls=True), Counting())
    await asyncio.gather(*(loader.load([part("http://images.example/")]) for _ in range(3 * MOST_FETCHES)))
    assert most == MOST_FETCHES


async def test_limits_of_the_loader() -> None:
    loader = ImageLoader(Settings(max_image_mp=0.0001))
    with pytest.raises(InvalidRequest, match="20 x 10 pixels"):
        await loader.load([part(data_url(PICTURE))])
    with pytest.raises(InvalidRequest, match=f"{MOST_IMAGES + 1} images"):
        await loader.load([part(data_url(PICTURE), n) for n in range(MOST_IMAGES + 1)])


async def test_what_was_fetched_must_be_an_image_too() -> None:
    async with site() as web:
        web.pages["/a"] = answer("200 OK", b"<html>secret</html>")
        loader = ImageLoader(Settings(image_urls=True), web.fetcher())
        with pytest.raises(InvalidRequest, match="is not a PNG") as caught:
            await loader.load([part(web.url("/a"))])
    assert "secret" not in caught.value.message
