"""`parallel` over two processes: the gradients of one device, and runs that move between them."""

import json
import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

import norewind
from norewind.core import mesh
from norewind.storage import checkpoint

STREAMS, STEPS = 4, 30
WORKER = """
import sys
import jax
number, port, folder, begin = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, number)
sys.path.insert(0, "tests/core")
import test_mesh
test_mesh.work(folder, begin)
"""


def learner():
    cell = norewind.cells.gru(inputs=2, hidden=4, outputs=1, symbols=False)
    estimator = norewind.parallel(norewind.uoro(cell.transition, norewind.losses.squared_error), STREAMS)
    made = norewind.online(estimator, norewind.adam(1e-2))
    state = np.stack([np.asarray(cell.initial_state())] * STREAMS)
    return made, made.init(cell.init(jax.random.key(0)), state, jax.random.key(1))


def samples():
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(2 * STEPS, STREAMS, 2)).astype(np.float32)
    return xs, xs[..., :1] * 0.5


def work(folder, begin):
    """In each of two processes, learn from its own half of the streams, and save the run."""
    made, start = learner()
    devices = mesh.stream_mesh()
    assert devices.size == 2
    if begin != "start":
        start, _ = checkpoint.load(begin, start)
    part = slice(STEPS, None) if begin != "start" else slice(0, STEPS)
    own = slice(0, 2) if jax.process_index() == 0 else slice(2, 4)
    xs, ys = (part_of[part, own] for part_of in samples())
    run, losses, _ = made.scan(mesh.spread_run(start, devices), *mesh.spread_samples((xs, ys), devices, local=True))
    run, losses = mesh.gather(run), np.asarray(mesh.gather(losses))
    if jax.process_index() == 0:
        checkpoint.save(folder, STEPS, run, {"losses": losses.tolist()})


def in_two_processes(folder, begin="start"):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    environment.pop("XLA_FLAGS", None)
    command = [sys.executable, "-c", WORKER]
    both = [
        subprocess.Popen(
            [*command, str(number), port, str(folder), str(begin)], env=environment, stderr=subprocess.PIPE
        )
        for number in (0, 1)
    ]
    try:
        errors = [process.communicate(timeout=240)[1].decode() for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], "\n".join(errors)
    (saved,) = checkpoint.checkpoints(folder)
    return saved


@pytest.mark.slow
def test_two_processes_learn_as_one_and_runs_move_between_them(tmp_path):
    """The gradients differ in the order of one sum, which amounts to 1e-5 after 30 updates in float32."""
    made, start = learner()
    xs, ys = samples()
    middle, first, _ = made.scan(start, xs[:STEPS], ys[:STEPS])
    end, second, _ = made.scan(middle, xs[STEPS:], ys[STEPS:])
    # From one process to two ...
    begin = checkpoint.save(tmp_path / "one", STEPS, middle)
    saved = in_two_processes(tmp_path / "two", begin)
    run, extra = checkpoint.load(saved, start)
    np.testing.assert_allclose(extra["losses"], second, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(jax.tree.leaves(run.params), jax.tree.leaves(end.params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    # ... and from two to one.
    saved = in_two_processes(tmp_path / "begun")
    run, extra = checkpoint.load(saved, start)
    np.testing.assert_allclose(extra["losses"], first, rtol=1e-4, atol=1e-5)
    run, losses, _ = made.scan(run, xs[STEPS:], ys[STEPS:])
    np.testing.assert_allclose(losses, second, rtol=1e-4, atol=1e-5)
    assert json.dumps(extra["losses"])


def test_streams_that_the_devices_do_not_divide_are_rejected():
    _, start = learner()

    class Three:
        size = 3

    with pytest.raises(norewind.core.ModelError, match="4 streams cannot be spread evenly over 3"):
        mesh.spread_run(start, Three())
