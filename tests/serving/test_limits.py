"""The limits of the server: connections, headers, timeouts, the token, queues."""

import asyncio
import shutil
import socket
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("uvicorn")
from servers import Server as Client
from servers import in_a_thread, table
from starlette.requests import Request

from norewind.serving import bodies, page_content, queues, server
from norewind.serving.access import is_local
from norewind.serving.app import application, stream
from norewind.serving.bodies import RequestError
from norewind.serving.page_content import PageContent
from norewind.serving.queues import MAX_BATCH, IncomingRows, PredictionQueue
from norewind.serving.service import Service
from norewind.streams.position import Mark, init_position

TOKEN = "correct-horse-battery"


def page(token=None):
    return application(PageContent({"name": "<b>", "columns": None}), token)


def talk(port: int, sent: bytes, seconds: float = 10) -> bytes:
    """Send bytes, and return everything that the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), seconds) as connection:
        connection.sendall(sent)
        found = b""
        while data := connection.recv(65536):
            found += data
        return found


def test_slow_and_long_headers_are_cut_off(monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    with in_a_thread(page()) as port:
        assert talk(port, b"").startswith(b"HTTP/1.1 408")
        assert talk(port, b"GET / HTTP/1.1\r\nHost: local").startswith(b"HTTP/1.1 408")
        assert talk(port, b"GET / HTTP/1.1\r\nX: " + b"x" * (1 << 15)).startswith(b"HTTP/1.1 431")
        # The second request of a connection has the same time limit.
        health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        found = talk(port, health + b"GET /health HTTP/1.1\r\nHo")
        assert found.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in found
        assert b"400" in talk(port, b"nonsense\r\n\r\n").split(b"\r\n")[0]


def test_headers_in_one_piece_are_limited_too():
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: %s\r\n\r\n"
    with in_a_thread(page()) as port:
        assert talk(port, head % (b"x" * 60_000)).startswith(b"HTTP/1.1 431")
        assert talk(port, head % (b"x" * 15_000)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("after", [b"", b"X-More: "], ids=["blank lines", "a header"])
def test_only_a_whole_request_keeps_a_connection_open(monkeypatch, after):
    """Neither blank lines nor the body of a request that was answered already count."""
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 0.5)
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.5)
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    with in_a_thread(page()) as port:
        for request in (health + b"\r\n", health + b"Content-Length: 1000000\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), 10) as connection:
                connection.sendall(request)
                assert connection.recv(65536).startswith(b"HTTP/1.1 200")
                connection.sendall(after)
                assert is_closed_while_sending(connection, b"\r\n")


def is_closed_while_sending(connection: socket.socket, piece: bytes) -> bool:
    """Return whether the server closes the connection while the client keeps sending."""
    connection.settimeout(0.05)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            connection.sendall(piece)
            if connection.recv(65536) == b"":
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


def test_too_many_connections_are_rejected(monkeypatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
    with in_a_thread(page()) as port:
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        time.sleep(0.2)
        assert talk(port, b"").startswith(b"HTTP/1.1 429")
        for connection in held:
            connection.close()
        time.sleep(0.2)
        assert Client(None, f"http://127.0.0.1:{port}/").ask("health")[0] == 200


def test_the_token(monkeypatch):
    with in_a_thread(page(TOKEN)) as port:
        client = Client(None, f"http://127.0.0.1:{port}/")
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert client.ask("health") == (200, {"status": "ok"})
        assert client.ask("health", headers=bearer)[1].keys() > {"status"}
        for path in ("events", "page.js", "../settings.toml", "%2e%2e/settings.toml"):
            assert client.ask(path)[0] == 401
        assert client.ask("page.js", headers={"authorization": "Bearer wrong"})[0] == 401
        assert client.ask("page.js", headers=bearer)[0] == 200
        assert client.ask("%2e%2e/page.js", headers=bearer)[0] == 404
        status, form = client.ask("")
        assert status == 401
        assert "password" in form
        assert client.ask("login", b"token=wrong")[0] == 401
        # Without the token, no more is read: decoding a megabyte of fields would keep the service busy.
        assert client.ask("login", b"a=b&" * 5_000)[0] == 413
        request = f"POST /login HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(TOKEN) + 6}\r\n\r\n"
        answer = talk(port, f"{request}token={TOKEN}".encode()).decode()
        assert answer.startswith("HTTP/1.1 303")
        cookie = next(line for line in answer.split("\r\n") if line.lower().startswith("set-cookie"))
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in cookie
        value = cookie.split(":", 1)[1].split(";")[0].strip()
        assert client.ask("page.js", headers={"cookie": f"other=1; {value}"})[0] == 200


def test_every_response_forbids_use_by_other_sites():
    with in_a_thread(page(TOKEN)) as port:
        for path in (b"/", b"/health", b"/nowhere"):
            head = talk(port, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").split(b"\r\n\r\n")[
                0
            ]
            for name in (b"content-security-policy", b"x-content-type-options", b"referrer-policy", b"cache-control"):
                assert head.lower().count(b"\r\n" + name + b": ") == 1


def test_an_invalid_origin_is_rejected():
    with in_a_thread(page()) as port:
        status, answer = Client(None, f"http://127.0.0.1:{port}/").ask("health", headers={"origin": "http://[::1"})
    assert status == 403
    assert answer["error"].startswith("requests from pages of other sites")


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("health", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ("health", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),
        ("page.js", {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 403),
        ("", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ("", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),  # a link to the page
        ("page.js", {"sec-fetch-site": "same-origin"}, 200),
        ("health", {"sec-fetch-site": "none"}, 200),
    ],
)
def test_a_get_from_another_site_is_rejected_although_it_has_no_origin(path, headers, expected):
    with in_a_thread(page()) as port:
        assert Client(None, f"http://127.0.0.1:{port}/").ask(path, headers=headers)[0] == expected


def test_addresses_of_this_machine():
    assert all(map(is_local, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_local, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))


def request(receive) -> Request:
    return Request({"type": "http", "headers": []}, receive)


def test_bodies_that_never_arrive(monkeypatch):
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.05)

    async def silence():
        await asyncio.sleep(10)

    with pytest.raises(RequestError) as rejected:
        asyncio.run(bodies.read_body(request(silence)))
    assert rejected.value.status == 408

    async def endless():
        return {"type": "http.request", "body": b"x" * (1 << 18), "more_body": True}

    with pytest.raises(RequestError) as rejected:
        asyncio.run(bodies.read_body(request(endless)))
    assert rejected.value.status == 413


@pytest.mark.parametrize(("path", "status"), [("login", b"413"), ("events", b"401")])
def test_a_client_may_send_all_of_a_body_that_is_rejected(path, status):
    """Otherwise the connection would be reset while the client sends, and it would never see the reason."""
    body = b"x" * (12 << 20)  # more than the buffers of both sides hold
    head = b"POST /%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with in_a_thread(page(TOKEN)) as port:
        assert talk(port, head % (path.encode(), len(body)) + body, 60).split()[1] == status


def test_lines_do_not_depend_on_the_pieces_they_arrive_in():
    async def lines(*pieces):
        messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        messages[-1]["more_body"] = False
        return [line async for line in bodies.read_lines(request(lambda: _next(messages)))]

    async def _next(messages):
        return messages.pop(0)

    assert asyncio.run(lines(b"a\nb", b"c\n\n", b"d")) == [b"a", b"bc", b"", b"d"]
    with pytest.raises(RequestError):
        asyncio.run(lines(b"x" * (bodies.MAX_STREAM_LINE_BYTES + 1)))
    with pytest.raises(RequestError):
        asyncio.run(lines(b"a\n" + b"x" * (bodies.MAX_STREAM_LINE_BYTES + 1) + b"\nb\n"))  # whole, in one piece


def test_simultaneous_requests_share_a_call_and_too_many_are_rejected():
    calls = []

    def answers(rows):
        calls.append(len(rows))
        return [row + 1 for row in rows]

    async def ask():
        queue = PredictionQueue(answers, 0.001)
        assert (queue.size, queue.most) == (4, 71)
        futures = [future for number in range(10) for future in queue.ask([number])]
        with pytest.raises(RequestError) as rejected:
            queue.ask(range(62))
        assert rejected.value.status == 429
        return await asyncio.gather(*futures)

    assert asyncio.run(ask()) == list(range(1, 11))
    assert calls == [4, 4, 2]


def test_requests_that_come_while_another_waits_share_its_call(monkeypatch):
    monkeypatch.setattr(queues, "SECONDS_BETWEEN_CALLS", 0.2)
    calls = []

    async def ask():
        queue = PredictionQueue(lambda rows: calls.append(len(rows)) or rows, 0.001)
        await queue.ask([1])[0]
        second, later = queue.ask([2])[0], []
        asyncio.get_running_loop().call_later(0.05, lambda: later.extend(queue.ask([3])))
        await second
        await later[0]

    asyncio.run(ask())
    assert calls == [1, 2]


def test_an_error_in_a_shared_call_reaches_every_caller():
    async def ask():
        queue = PredictionQueue(lambda rows: 1 / 0, 0.001)
        with pytest.raises(ZeroDivisionError):
            await queue.ask([1])[0]

    asyncio.run(ask())


def test_an_internal_error_is_answered_without_a_traceback(trained, tmp_path):
    service = Service(shutil.copytree(trained, tmp_path / "run"))

    async def fail(*_):
        raise ZeroDivisionError

    service.predict = service.follow = fail
    try:
        with in_a_thread(application(service.page, service=service)) as port:
            client = Client(None, f"http://127.0.0.1:{port}/")
            status, answer = client.ask("predict", {"row": {"power": 1}})
            assert (status, "internal error" in answer["error"]) == (500, True)
            assert client.ask("predict")[0] == 405
            (answer,) = client.stream([{"power": 1}, {"power": 2}])
            assert ("internal error" in answer["error"], answer["line"]) == (True, 1)
    finally:
        service.close()


def test_lines_that_a_run_diverges_at_are_answered_too(trained, tmp_path, diverge):
    service = Service(shutil.copytree(trained, tmp_path / "run"))
    diverge(350)
    try:
        with in_a_thread(application(service.page, service=service)) as port:
            answers = Client(None, f"http://127.0.0.1:{port}/").stream(table(200, 300))
    finally:
        service.close()
    assert "learning ended before" in answers[-1]["error"] or "it went wrong" in answers[-1]["error"]


def test_incoming_rows_are_read_together_in_order_and_to_the_end():
    def rows(some):
        return [({"n": number}, b"%d\n" % number) for number in some]

    def together():
        incoming.set_timeout(0)
        return incoming.peek(1000)

    incoming = IncomingRows(most=1000)
    incoming.start(init_position("rows", inside=True))
    incoming.catch_up()
    assert incoming.add(rows(range(MAX_BATCH + 5)))
    assert not incoming.add(rows(range(1000)))
    assert [row["n"] for row, _ in together()] == list(range(MAX_BATCH))
    incoming.drop(incoming.peek(MAX_BATCH))
    assert len(together()) == 5
    assert len(together()) == 5  # until they are skipped
    incoming.drop(incoming.peek(5))
    assert incoming.progress.here == Mark().after(b"\n" + b"".join(line for _, line in rows(range(MAX_BATCH + 5))))
    threading.Timer(0.05, incoming.close).start()
    while not incoming.ended:
        assert not together()
    assert not incoming.add(rows([1]))


def test_rows_accepted_just_before_the_source_is_closed_are_read():
    incoming = IncomingRows(most=10)
    incoming.start(init_position("rows", inside=False))
    assert incoming.add([({"n": 1}, b"1\n")])
    incoming.close()  # after the last look, and before the next one
    assert not incoming.peek(1)
    assert not incoming.ended
    incoming.set_timeout(0)
    assert incoming.peek(1)


def test_incoming_rows_are_limited_in_bytes(monkeypatch):
    monkeypatch.setattr(queues, "MAX_QUEUE_BYTES", 100)
    incoming = IncomingRows(most=1000)
    assert incoming.add([({}, b"x" * 60)])
    assert not incoming.add([({}, b"x" * 60)])
    incoming.set_timeout(0)
    assert incoming.add([({}, b"x" * 60)])


def test_an_answer_does_not_wait_for_the_next():
    sent = []

    async def ask():
        first, second = asyncio.Future(), asyncio.Future()
        futures = iter((first, second))

        async def follow(row):
            return next(futures)

        async def receive():
            return {"type": "http.request", "body": b'{"x": 1}\n{"x": 2}\n'}

        async def send(message):
            sent.append(message.get("body"))

        first.set_result({"sample": 1})
        response = await stream(SimpleNamespace(streams=set(), follow=follow), request(receive))
        answering = asyncio.create_task(response({}, receive, send))
        while b'{"sample": 1}\n' not in sent:
            await asyncio.sleep(0)
        second.set_result({"sample": 2})
        await answering

    asyncio.run(asyncio.wait_for(ask(), 5))
    assert b"".join(filter(None, sent)) == b'{"sample": 1}\n{"sample": 2}\n'


def test_viewers_receive_what_is_new():
    live = PageContent({"name": "x", "columns": None}, [{"samples": 1, "loss": 2.0}], lambda: {"samples": 1})
    sent, event, content = live.next_event(None)
    assert (event, content["about"]["name"], len(content["metrics"])) == ("start", "x", 1)
    for number in range(300):
        live.add_rows([{"sample": number, "key": f"k{number % 3}", "surprise": float(number % 3)}])
    assert [entry["key"] for entry in live.snapshot()["keys"]] == ["k2", "k1", "k0"]
    sent, event, content = live.next_event(sent)
    assert (event, content["metrics"], len(content["rows"])) == ("tick", [], 200)
    live.add_metrics({"samples": 2, "loss": 1.0})
    live.add_rows([{"sample": 300}])
    sent, event, content = live.next_event(sent)
    assert (event, content["rows"], content["metrics"][0]["samples"]) == ("tick", [{"sample": 300}], 2)
    assert content["status"]["samples"] == 1
    live.restart()
    assert live.next_event(sent)[1] == "start"


def test_the_page_keeps_a_limited_number_of_lines_and_keys(monkeypatch):
    """Old lines are thinned out, so that the curves still begin early."""
    monkeypatch.setattr(page_content, "MAX_KEYS", 3)
    live, sent = PageContent({"name": "x"}), None
    for number in range(3_000):
        live.add_metrics({"samples": number})
        if number == 2_996:
            sent, _, _ = live.next_event(None)
        assert len(live.metrics) <= page_content.MAX_METRICS
    samples = [line["samples"] for line in live.metrics]
    assert samples == sorted(samples)
    assert samples[-500:] == list(range(2_500, 3_000))
    assert samples[0] < 500 < len(samples)
    assert [line["samples"] for line in live.next_event(sent)[2]["metrics"]] == [2_997, 2_998, 2_999]
    for key in "abcad":
        live.add_rows([{"sample": 1, "key": key, "surprise": 1.0}])
    assert list(live.keys) == ["c", "a", "d"]


def test_viewers_are_limited_and_disconnected_at_the_end():
    """This includes a client that does not read: nothing is buffered for it."""
    live = PageContent({"name": "x", "columns": None})
    with in_a_thread(application(live)) as port:
        ask = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
        viewers = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(32)]
        for viewer in viewers:
            viewer.sendall(ask)
            assert viewer.recv(10) == b"HTTP/1.1 2"
        assert Client(None, f"http://127.0.0.1:{port}/").ask("events")[0] == 429
        viewers.pop().close()
        end = time.monotonic() + 10
        while live.viewers == 32:
            assert time.monotonic() < end
            time.sleep(0.05)
        live.end()
        for viewer in viewers:
            found = b""
            while not found.endswith(b"0\r\n\r\n"):
                found += viewer.recv(65536)
            viewer.close()


def test_a_viewer_that_does_not_read_is_disconnected(monkeypatch):
    """Its connection is aborted: closing it would wait until the viewer has read everything."""
    monkeypatch.setattr(server, "SEND_SECONDS", 0.2)
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 1)
    live = PageContent({"name": "x" * 1_000_000, "columns": None})
    with in_a_thread(application(live)) as port, socket.create_connection(("127.0.0.1", port), 10) as viewer:
        viewer.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert viewer.recv(10)
        client, end = Client(None, f"http://127.0.0.1:{port}/"), time.monotonic() + 20
        assert client.ask("health")[0] == 429
        while live.viewers or client.ask("health")[0] == 429:
            live.restart()  # all of it is sent again
            assert time.monotonic() < end
            time.sleep(0.1)
