"""Runs that do not fit into memory are rejected, with a size that would fit."""

from dataclasses import replace

import pytest

from norewind.training.build import build
from norewind.training.open_stream import StreamShape
from norewind.training.settings import Settings, SettingsError

pytestmark = pytest.mark.usefixtures("shared_programs")


SYMBOLS = StreamShape(256, 256, True)
ROWS = StreamShape(99, 99, False, 99, tuple(range(1, 10**5 + 1)))
HUGE = {
    "hidden": (Settings(method="uoro", hidden=10**8), SYMBOLS, "--hidden [0-9]+ would fit"),
    "rtrl": (Settings(method="rtrl", hidden=10**4), SYMBOLS, "--hidden [0-9]+ would fit"),
    "rank": (Settings(method=f"uoro:rank={10**9}", hidden=4), SYMBOLS, "smaller"),
    "window": (Settings(method=f"bptt:{10**12}", hidden=4), SYMBOLS, "smaller"),
    "horizon": (Settings(method="uoro", hidden=4, source="x.csv", horizon=10**5), ROWS, "--horizon [0-9]+ would fit"),
    "auto": (Settings(source="x.csv", horizon=10**5), ROWS, "--horizon [0-9]+ would fit"),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_run_that_is_too_large_is_rejected_with_a_size_that_fits(name, monkeypatch):
    settings, shape, words = HUGE[name]
    monkeypatch.setattr("norewind.training.build.available_bytes", lambda: 10**10)
    with pytest.raises(SettingsError, match=f"would take about .*this machine has 10.0 GB. .*{words}"):
        build(settings, shape)


def test_the_suggested_size_fits(monkeypatch):
    settings = Settings(method="uoro", hidden=10**6)
    monkeypatch.setattr("norewind.training.build.available_bytes", lambda: 10**7)
    with pytest.raises(SettingsError) as rejected:
        build(settings, SYMBOLS)
    most = int(str(rejected.value).split("--hidden ")[1].split()[0])
    build(replace(settings, hidden=most), SYMBOLS)
    with pytest.raises(SettingsError):
        build(replace(settings, hidden=most + most // 100 + 2), SYMBOLS)
