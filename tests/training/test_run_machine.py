"""A run ends the same after any sequence of events (a Hypothesis state machine)."""

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from run_folders import TEXT, everything, latest, norewind

from norewind.storage.checkpoint import checkpoints
from norewind.training.progress import Progress

pytestmark = pytest.mark.usefixtures("shared_programs")


class Killed(BaseException):
    """Simulates a kill: no handler catches it, and nothing is saved."""


def machine_of(whole: Path):
    text = (whole / "text").read_bytes()

    class Machine(RuleBasedStateMachine):
        """The file grows, and its run is trained, killed, moved, damaged and resumed."""

        def __init__(self):
            super().__init__()
            self.folder = Path(tempfile.mkdtemp())
            self.source, self.run, self.there = self.folder / "text", self.folder / "run", 700
            self.source.write_bytes(text[: self.there])

        def command(self, *more):
            began = checkpoints(self.run / "checkpoints")
            if began:
                return norewind("resume", self.run, "--source", self.source, "--quiet", *more)
            shutil.rmtree(self.run, ignore_errors=True)
            return norewind("train", self.source, "--out", self.run, *TEXT)

        @rule(by=st.integers(1, 600))
        def grow(self, by):
            self.there = min(len(text), self.there + by)
            with self.source.open("ab") as file:
                file.write(text[self.source.stat().st_size : self.there])

        @rule()
        def train(self):
            assert self.command() == 0

        @rule(at=st.integers(1, 2_000))
        def kill(self, at):
            advance = Progress.advance

            def deadly(progress, name, seen):
                if seen >= at:
                    raise Killed
                advance(progress, name, seen)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Progress, "advance", deadly)
                with suppress(Killed):
                    assert self.command() == 0

        @precondition(lambda self: len(checkpoints(self.run / "checkpoints")) > 1)
        @rule(place=st.integers(0, 999))
        def damage(self, place):
            path = latest(self.run)
            content = bytearray(path.read_bytes())
            content[place * len(content) // 1_000] ^= 1
            path.write_bytes(content)
            assert self.command() == 1
            assert self.command("--damaged", "skip") == 0

        @rule(keep=st.integers(1, 4), every=st.integers(100, 500))
        def change(self, keep, every):
            """Settings that may change: how often checkpoints are written, how many are kept, and where the file is."""
            path = self.run / "settings.toml"
            if path.exists():
                lines = [
                    line
                    for line in path.read_text().splitlines()
                    if line.split()[0] not in ("keep", "checkpoint_every")
                ]
                path.write_text("\n".join([*lines, f"keep = {keep}", f"checkpoint_every = {every}"]) + "\n")
            moved = self.folder / f"text{keep}"
            self.source = self.source.rename(moved)

        @precondition(lambda self: checkpoints(self.run / "checkpoints"))
        @rule()
        def change_what_may_not(self):
            path = self.run / "settings.toml"
            before = path.read_text()
            path.write_text(before.replace("hidden = 4", "hidden = 5"))
            assert self.command() == 1
            path.write_text(before)

        @precondition(lambda self: checkpoints(self.run / "checkpoints"))
        @rule(place=st.integers(0, 99))
        def change_the_past(self, place):
            """Change a byte that has already been read."""
            content = self.source.read_bytes()
            self.source.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            assert self.command() == 1
            self.source.write_bytes(content)

        def teardown(self):
            self.source.write_bytes(text)
            assert self.command() == 0
            assert everything(self.run) == everything(whole / "bytes")
            shutil.rmtree(self.folder)

    return Machine


def budget(examples: int, steps: int, **more):
    return settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck), **more
    )


def test_any_sequence_of_events(whole):
    run_state_machine_as_test(machine_of(whole), settings=budget(4, 8, derandomize=True))


@pytest.mark.slow
def test_any_sequence_of_many_events(whole):
    run_state_machine_as_test(machine_of(whole), settings=budget(60, 20))
