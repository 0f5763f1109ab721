"""The page, opened and clicked through in a real browser."""

import json
import threading

import pytest

from tools.browser import CHROMIUM, DRIVER, browser

pytest.importorskip("uvicorn")
from servers import in_a_thread, served, table

from norewind.serving.app import application
from norewind.serving.page_content import PageContent

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium and chromedriver")
SHOWN = "return document.querySelector(arguments[0]).getBoundingClientRect().height > 0"
PATHS = "return document.querySelectorAll('#loss path').length"


def test_the_page_of_a_service_follows_what_is_learned(run):
    with served(run) as server, browser() as page:
        page.open(server.address)
        page.wait("return document.querySelector('#link').textContent === 'live'")
        assert page.text("#name") == "run"
        assert "gru-4" in page.text("#about")
        assert page.run(PATHS) >= 3
        # New rows appear without a click.
        answers = []
        sending = threading.Thread(target=lambda: answers.extend(server.stream(table(250, 300))))
        sending.start()
        page.wait("return document.querySelector('#tiles').textContent.includes('550')")
        sending.join(60)
        assert len(answers) == 250
        page.wait("return document.querySelectorAll('#surprise rect').length > 150")
        assert page.run("return document.querySelectorAll('#top tr').length") == 8
        assert "healthy" in page.text("#tiles")
        # Every control works.
        before = page.run(PATHS)
        page.click("#legend button[data-curve=loss]")
        assert page.run(PATHS) == before - 1
        page.click("#legend button[data-curve=loss]")
        assert page.run(PATHS) == before
        page.click("#span button[data-span='0.5']")
        assert page.run("return document.querySelector('[data-span=\"0.5\"]').ariaPressed") == "true"
        page.run("const s = document.querySelector('#target'); s.value = 'power'; s.dispatchEvent(new Event('change'))")
        assert "power" in page.text("#rows-legend")
        theme = page.run("return getComputedStyle(document.body).backgroundColor")
        page.click("#theme")
        assert page.run("return getComputedStyle(document.body).backgroundColor") != theme
        page.click("#pause")
        shown = page.text("#tiles")
        server.stream(table(5, 550))
        assert page.text("#tiles") == shown
        page.click("#pause")
        page.wait("return document.querySelector('#tiles').textContent.includes('555')")
        # With the keyboard alone: Tab reaches a control first.
        page.type("body", "\ue004")
        assert page.run("return document.activeElement.tagName") in ("BUTTON", "SELECT")
        page.resize(400, 900)
        assert page.run("return document.documentElement.scrollWidth <= window.innerWidth + 1")
        assert server.end() == 143
        page.wait("return document.querySelector('#link').className.includes('bad')")
        problems = [entry["message"] for entry in page.log() if entry["level"] == "SEVERE"]
        assert all("ERR_CONNECTION_REFUSED" in message or "ERR_INCOMPLETE" in message for message in problems), problems


def test_the_page_of_a_folder_follows_it_and_shows_keys_as_text(run):
    with served(run, command="watch") as server, browser() as page:
        page.open(server.address)
        page.wait("return document.querySelector('#link').textContent === 'live'")
        page.wait("return document.querySelectorAll('#surprise rect').length > 150")
        assert page.run("return document.querySelector('#keys-section').hidden")
        evil = "<img src=x onerror=document.title='caught'>"
        entry = {"sample": 301, "key": evil, "target": {"power": 1}, "prediction": {"power": 2}, "surprise": 99.0}
        with (run / "predictions.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")
        page.wait("return document.querySelectorAll('#keys tr').length === 1")
        assert evil in page.text("#keys")
        # A click on a key shows its rows.
        page.click("#keys button")
        assert f"belong to {evil}" in page.text("#rows")
        assert not page.run(SHOWN, "#symbols")
        assert page.run("return document.title") == "run – norewind"
        assert page.run("return document.images.length") == 0
        status, answer = server.ask("predict", {"row": {}})
        assert status == 404
        assert "predict" in answer["error"]
        assert server.end() == 143


def test_the_page_of_a_text_shows_symbols_and_no_empty_chart():
    about = {"name": "book", "kind": "bytes", "unit": "bits", "model": "gru-4", "source": "book.txt", "columns": None}
    about |= {"has_rows": False, "simple": {"baseline": "order-0 entropy"}}
    live = PageContent(about)
    output = {"prediction": 84, "probability": 0.9, "surprise": 1.0}
    live.add_rows([{"sample": n, "symbol": symbol, **output} for n, symbol in enumerate(b"The fox\n", 1)])
    with in_a_thread(application(live)) as port, browser() as page:
        page.open(f"http://127.0.0.1:{port}/")
        page.wait("return document.querySelector('#link').textContent === 'live'")
        assert page.text("#symbols") == "The fox\n"
        assert [page.run(SHOWN, place) for place in ("#symbols", "#rows", "#rows-legend")] == [True, False, False]
        assert "byte 10" in page.text("#top")
        assert "“T”" in page.text("#top")
