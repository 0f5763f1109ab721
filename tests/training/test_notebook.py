"""The learning curve that grows in a notebook."""

import base64
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from norewind.training import Hooks, notebook


class Screen:
    """Stands in for IPython's display, and for the handle it returns."""

    def __init__(self):
        self.pictures = []

    def __call__(self, picture, *, raw, display_id):
        assert display_id
        self.update(picture, raw=raw)
        return self

    def update(self, picture, *, raw):
        assert raw
        self.pictures.append(base64.b64decode(picture["image/png"]))


@pytest.fixture
def screen(monkeypatch):
    """A process that looks like the kernel of a notebook."""
    shown = Screen()
    package, inside = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: SimpleNamespace(kernel=True)
    inside.display = shown
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", inside)
    return shown


def line(samples):
    return {"samples": samples, "loss": 1 / samples}


def test_at_most_once_a_second_and_once_at_the_end():
    now, screen = [0.0], Screen()
    plot = notebook.LivePlot(screen, "nats", clock=lambda: now[0])
    for samples in range(1, 31):
        plot.add_line(line(samples))
        now[0] += 0.1
    assert len(screen.pictures) == 3
    plot.draw()
    plot.draw()
    assert len(screen.pictures) == 4
    assert all(picture.startswith(b"\x89PNG") for picture in screen.pictures)
    assert len(set(screen.pictures)) == 4


def test_a_long_run_keeps_few_points(monkeypatch):
    monkeypatch.setattr(notebook.LivePlot, "draw", lambda self: None)
    plot = notebook.LivePlot(Screen(), "nats")
    for samples in range(1, 3_001):
        plot.add_line(line(samples))
    assert 500 <= len(plot.lines) <= notebook.MAX_LINES
    assert (plot.lines[0], plot.lines[-1]) == (line(1), line(3_000))


def test_in_a_notebook_and_not_when_turned_off(screen):
    seen = []
    with notebook.live_plot(Hooks(metrics=seen.append), "nats") as hooks:
        hooks.metrics(line(1))
    assert (len(seen), len(screen.pictures)) == (1, 1)
    with notebook.live_plot(Hooks(), "nats", None) as hooks:
        hooks.metrics(line(2))
    assert len(screen.pictures) == 1


def test_a_run_that_fails_still_shows_its_curve(screen):
    with pytest.raises(KeyboardInterrupt), notebook.live_plot(Hooks(), "nats") as hooks:
        hooks.metrics(line(1))
        hooks.metrics(line(2))
        raise KeyboardInterrupt
    assert len(screen.pictures) == 2


def test_an_ipython_prompt_is_not_a_notebook(screen, monkeypatch):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace())
    assert notebook.notebook_display() is None
    hooks = Hooks()
    with notebook.live_plot(hooks, "nats") as same:
        assert same is hooks


def test_ipython_is_not_imported_elsewhere():
    code = (
        "import sys; from norewind.training.notebook import notebook_display; "
        "assert notebook_display() is None; sys.exit('IPython' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


IN_A_KERNEL = """
from norewind.training import Hooks, notebook

with notebook.live_plot(Hooks(), "nats") as hooks:
    for samples in (1, 2, 3):
        hooks.metrics({"samples": samples, "loss": 1 / samples})
"""


@pytest.mark.slow
def test_a_real_kernel_shows_one_picture_and_updates_it():
    pytest.importorskip("ipykernel")
    start_new_kernel = pytest.importorskip("jupyter_client.manager").start_new_kernel
    manager, client = start_new_kernel(kernel_name="python3")
    pictures = []
    try:
        client.execute_interactive(IN_A_KERNEL, timeout=120, output_hook=pictures.append)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    pictures = [message for message in pictures if message["msg_type"] != "status"]
    assert [message["msg_type"] for message in pictures] == ["execute_input", "display_data", "update_display_data"]
    _, first, last = (message["content"] for message in pictures)
    assert first["transient"] == last["transient"]
    assert first["data"]["image/png"] != last["data"]["image/png"]
