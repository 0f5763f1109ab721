"""The limits of the server: connections, headers, patience, the token, queues."""

import asyncio
import json
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

from norewind.serving import access, bodies, queues, server
from norewind.serving.access import is_local
from norewind.serving.app import application, stream
from norewind.serving.bodies import Refusal
from norewind.serving.page_feed import PageFeed
from norewind.serving.queues import MAX_BATCH, Incoming, LateLabels, PredictionQueue
from norewind.serving.service import Service
from norewind.streams.position import Mark, init_position

TOKEN = "correct-horse-battery"


def page(token=None):
    return application(PageFeed({"name": "<b>", "columns": None}), token)


def talk(port: int, sent: bytes, seconds: float = 10) -> bytes:
    """What the server answers to some bytes until it closes the connection."""
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
        # The second request of a connection has as little time.
        health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        found = talk(port, health + b"GET /health HTTP/1.1\r\nHo")
        assert found.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in found
        assert b"400" in talk(port, b"nonsense\r\n\r\n").split(b"\r\n")[0]


def test_too_many_connections_are_refused(monkeypatch):
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
        request = f"POST /login HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(TOKEN) + 6}\r\n\r\n"
        answer = talk(port, f"{request}token={TOKEN}".encode()).decode()
        assert answer.startswith("HTTP/1.1 303")
        cookie = next(line for line in answer.split("\r\n") if line.lower().startswith("set-cookie"))
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in cookie
        value = cookie.split(":", 1)[1].split(";")[0].strip()
        assert client.ask("page.js", headers={"cookie": f"other=1; {value}"})[0] == 200


def test_every_answer_keeps_pages_of_others_away():
    with in_a_thread(page(TOKEN)) as port:
        for path in (b"/", b"/health", b"/nowhere"):
            head = talk(port, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").split(b"\r\n\r\n")[
                0
            ]
            for name in (b"content-security-policy", b"x-content-type-options", b"referrer-policy", b"cache-control"):
                assert head.lower().count(b"\r\n" + name + b": ") == 1


def test_an_origin_that_is_no_address_is_refused():
    with in_a_thread(page()) as port:
        status, answer = Client(None, f"http://127.0.0.1:{port}/").ask("health", headers={"origin": "http://[::1"})
    assert status == 403
    assert answer["error"].startswith("requests from pages of other sites")


def test_addresses_of_this_machine():
    assert all(map(is_local, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_local, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))


def request(receive) -> Request:
    return Request({"type": "http", "headers": []}, receive)


def test_bodies_that_do_not_come(monkeypatch):
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.05)

    async def silence():
        await asyncio.sleep(10)

    with pytest.raises(Refusal) as refused:
        asyncio.run(bodies.read_body(request(silence)))
    assert refused.value.status == 408

    async def endless():
        return {"type": "http.request", "body": b"x" * (1 << 18), "more_body": True}

    with pytest.raises(Refusal) as refused:
        asyncio.run(bodies.read_body(request(endless)))
    assert refused.value.status == 413


@pytest.mark.parametrize(("path", "status"), [("login", b"413"), ("events", b"401")])
def test_a_client_may_send_all_of_a_body_that_is_refused(path, status):
    """Otherwise its connection is reset while it sends, and it never sees why."""
    body = b"x" * (12 << 20)  # more than the buffers of both sides hold
    head = b"POST /%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with in_a_thread(page(TOKEN)) as port:
        assert talk(port, head % (path.encode(), len(body)) + body, 60).split()[1] == status


def test_lines_come_as_they_are_sent_whatever_the_pieces():
    async def lines(*pieces):
        messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        messages[-1]["more_body"] = False
        return [line async for line in bodies.read_lines(request(lambda: _next(messages)))]

    async def _next(messages):
        return messages.pop(0)

    assert asyncio.run(lines(b"a\nb", b"c\n\n", b"d")) == [b"a", b"bc", b"", b"d"]
    with pytest.raises(Refusal):
        asyncio.run(lines(b"x" * (bodies.MAX_STREAM_LINE_BYTES + 1)))


def test_requests_of_one_moment_share_a_call_and_too_many_are_refused():
    calls = []

    def answers(rows):
        calls.append(len(rows))
        return [row + 1 for row in rows]

    async def ask():
        queue = PredictionQueue(answers, 0.001)
        assert (queue.size, queue.most) == (4, 71)
        futures = [future for number in range(10) for future in queue.ask([number])]
        with pytest.raises(Refusal) as refused:
            queue.ask(range(62))
        assert refused.value.status == 429
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


def test_an_error_in_one_call_reaches_those_who_asked():
    async def ask():
        queue = PredictionQueue(lambda rows: 1 / 0, 0.001)
        with pytest.raises(ZeroDivisionError):
            await queue.ask([1])[0]

    asyncio.run(ask())


def test_an_error_of_ours_is_answered_in_words(trained, tmp_path):
    service = Service(shutil.copytree(trained, tmp_path / "run"))

    async def fail(*_):
        raise ZeroDivisionError

    service.predict = service.follow = fail
    try:
        with in_a_thread(application(service.feed, service=service)) as port:
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
        with in_a_thread(application(service.feed, service=service)) as port:
            answers = Client(None, f"http://127.0.0.1:{port}/").stream(table(200, 300))
    finally:
        service.close()
    assert "learning ended before" in answers[-1]["error"] or "it went wrong" in answers[-1]["error"]


def test_incoming_rows_are_read_together_in_order_and_to_the_end():
    def rows(some):
        return [({"n": number}, b"%d\n" % number) for number in some]

    def together():
        incoming.set_patience(0)
        return incoming.peek(1000)

    incoming = Incoming(most=1000)
    incoming.start(init_position("rows", inside=True))
    incoming.catch_up()
    assert incoming.add(rows(range(MAX_BATCH + 5)))
    assert not incoming.add(rows(range(1000)))
    assert [row["n"] for row, _ in together()] == list(range(MAX_BATCH))
    incoming.drop(incoming.peek(MAX_BATCH))
    assert len(together()) == 5
    assert len(together()) == 5  # until they are moved past
    incoming.drop(incoming.peek(5))
    assert incoming.progress.here == Mark().after(b"\n" + b"".join(line for _, line in rows(range(MAX_BATCH + 5))))
    threading.Timer(0.05, incoming.close).start()
    while not incoming.ended:
        assert not together()
    assert not incoming.add(rows([1]))


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


def test_viewers_are_told_what_is_new():
    feed = PageFeed({"name": "x", "columns": None}, [{"samples": 1, "loss": 2.0}], lambda: {"samples": 1})
    sent, event, content = feed.next_event(None)
    assert (event, content["about"]["name"], len(content["metrics"])) == ("start", "x", 1)
    for number in range(300):
        feed.add_rows([{"sample": number, "key": f"k{number % 3}", "surprise": float(number % 3)}])
    assert [entry["key"] for entry in feed.snapshot()["keys"]] == ["k2", "k1", "k0"]
    sent, event, content = feed.next_event(sent)
    assert (event, content["metrics"], len(content["rows"])) == ("tick", [], 200)
    feed.add_metrics({"samples": 2, "loss": 1.0})
    feed.add_rows([{"sample": 300}])
    sent, event, content = feed.next_event(sent)
    assert (event, content["rows"], content["metrics"][0]["samples"]) == ("tick", [{"sample": 300}], 2)
    assert content["status"]["samples"] == 1
    feed.restart()
    assert feed.next_event(sent)[1] == "start"


def test_viewers_are_few_and_let_go_at_the_end():
    """Also one that does not read: nothing is kept for it."""
    feed = PageFeed({"name": "x", "columns": None})
    with in_a_thread(application(feed)) as port:
        ask = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
        viewers = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(32)]
        for viewer in viewers:
            viewer.sendall(ask)
            assert viewer.recv(10) == b"HTTP/1.1 2"
        assert Client(None, f"http://127.0.0.1:{port}/").ask("events")[0] == 429
        viewers.pop().close()
        end = time.monotonic() + 10
        while feed.viewers == 32:
            assert time.monotonic() < end
            time.sleep(0.05)
        feed.end()
        for viewer in viewers:
            found = b""
            while not found.endswith(b"0\r\n\r\n"):
                found += viewer.recv(65536)
            viewer.close()


def test_a_viewer_that_does_not_read_is_cut_off(monkeypatch):
    monkeypatch.setattr(access, "SEND_SECONDS", 0.2)
    feed = PageFeed({"name": "x" * 1_000_000, "columns": None})
    with in_a_thread(application(feed)) as port, socket.create_connection(("127.0.0.1", port), 10) as viewer:
        viewer.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert viewer.recv(10)
        end = time.monotonic() + 20
        while feed.viewers:
            feed.restart()  # all of it is sent again
            assert time.monotonic() < end
            time.sleep(0.1)


def test_a_row_is_saved_while_it_moves(tmp_path):
    """In the middle of `done`, and in the middle of `save`."""
    labels = LateLabels(tmp_path, 10, 0)
    labels.add("a", {"x": 1})

    class Moving(dict):
        def __delitem__(self, id):
            labels.save()  # before it is removed here
            before.append(json.loads(labels.path.read_text()))
            super().__delitem__(id)

        def copy(self):
            return dict(self)

    before = []
    labels.unlabeled = Moving(labels.unlabeled)
    labels.done("a", 1)
    labels.save()
    assert before == [json.loads(labels.path.read_text())] == [{"a": [1, {"x": 1}]}]

    class Copied(dict):
        def copy(self):
            found = dict(self)
            labels.done("b", 2)  # between the two copies
            return found

    labels.add("b", {"x": 2})
    labels.unlabeled = Copied(labels.unlabeled)
    labels.save()
    assert json.loads(labels.path.read_text())["b"] == [2, {"x": 2}]
