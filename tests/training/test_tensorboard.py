"""The events that a run writes for TensorBoard."""

import struct

import numpy as np
import pytest
from run_folders import TEXT, norewind

from norewind.training.log import read_log

pytestmark = pytest.mark.usefixtures("shared_programs")


def events(folder):
    """Read events like TensorBoard: a length, its checksum, the event and its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            yield Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]


def test_events_for_tensorboard(whole, tmp_path):
    pytest.importorskip("tensorboardX")
    run = tmp_path / "run"
    assert norewind("train", whole / "text", "--out", run, *TEXT, "--tensorboard", "--samples", 700) == 0
    values = [
        (event.step, value.tag, value.simple_value)
        for event in events(run / "tensorboard")
        for value in event.summary.value
    ]
    for entry in read_log(run / "metrics.jsonl"):
        assert (entry["samples"], "loss", np.float32(entry["loss"])) in values
    assert {tag for _, tag, _ in values} == {"loss", "mean", "baseline", "carry", "seconds"}
    # The last line is removed when the run continues.
    assert norewind("resume", run, "--samples", 900, "--quiet") == 0
    starts = [event.step for event in events(run / "tensorboard") if event.session_log.status == 1]
    assert starts[-1] == 700
