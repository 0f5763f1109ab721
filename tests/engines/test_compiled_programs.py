"""The cost of a step, counted in the compiled program instead of timed, so that slowdowns are found early."""

import math
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from quick import AS_USERS_DO

import norewind
from norewind.core.structure import DeclaredTransition, structure_of

HIDDEN, LENGTH = 64, 256
# The most kernels that one step of a GRU-64 may launch, with the current compilers of the two JAX versions. A new
# compiler may need a few more; check the table of `make bench` before you raise a number.
KERNELS = {
    "0.12": {"uoro": 115, "uoro:rank=8": 130, "bptt": 59, "snap1": 79},
    "0.10": {"uoro": 115, "uoro:rank=8": 130, "bptt": 59, "snap1": 79},
}
COMPILER = ".".join(jax.__version__.split(".")[:2])
# Arrays as large as a matrix of recurrent weights that one step may write, in sets of these weights: the parameters,
# Adam's two moments, and for UORO θ̃. At rank 8, also seven more θ̃, their mean, an eighth of the squares in the norms
# of eight θ̃ and eight νᵀI. For SnAp-1, its trace. An outer product that is written out is one more.
WRITTEN = {"uoro": 4, "uoro:rank=8": 16.5, "bptt": 3, "snap1": 4}


def learner_and_run(method, cell=None):
    cell = cell or norewind.cells.gru(3, HIDDEN, 3)
    estimator = norewind.registry.parse_method(method).make(
        cell.transition, norewind.losses.cross_entropy, jnp.array(0)
    )
    learner = norewind.online(estimator, norewind.adam(norewind.inverse_sqrt(1e-3, alpha=0.03)))
    return learner, learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))


def instructions_of_a_step(method):
    """Return all operations of one step of the compiled loop, as (operation, bytes of its result)."""
    learner, run = learner_and_run(method)
    stream = jnp.zeros(LENGTH, int)
    compiled = jax.jit(learner.scan, compiler_options=AS_USERS_DO).lower(run, stream, stream).compile().as_text()
    computations = dict(re.findall(r"^%?([\w.\-]+) \(.*?\) -> .*?\{\n(.*?)^\}", compiled, re.M | re.S))
    loops = re.findall(r"body=%?([\w.\-]+)", compiled)
    body = max((computations[name] for name in loops), key=len)
    found = re.findall(r"^ +(?:ROOT )?%?[\w.\-]+ = (.*?) ([a-z\-]+)\(", body, re.M)
    free = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast"}
    return [(operation, size_of(shape)) for shape, operation in found if operation not in free]


def size_of(shape):
    """Return the bytes of the largest array of 32-bit numbers in a shape such as f32[64,64]{1,0}."""
    arrays = re.findall(r"[fsu]32\[([\d,]*)\]", shape)
    return max((4 * math.prod(int(n) for n in dims.split(",") if n) for dims in arrays), default=0)


@pytest.fixture(scope="module", params=list(WRITTEN))
def program(request):
    with jax.enable_x64(False):
        return request.param, instructions_of_a_step(request.param)


def test_a_step_launches_no_more_kernels(program):
    method, instructions = program
    if COMPILER not in KERNELS:
        pytest.skip(f"no number of kernels is noted for JAX {COMPILER}")
    assert len(instructions) <= KERNELS[COMPILER][method]


def test_no_outer_product_is_written_out(program):
    method, instructions = program
    block = HIDDEN * HIDDEN * 4  # gates hold two of these, the candidate one
    written = sum(size for operation, size in instructions if size >= block)
    assert written <= WRITTEN[method] * 3 * block


def test_nothing_large_is_copied(program):
    _, instructions = program
    assert [size for operation, size in instructions if operation == "copy" and size >= HIDDEN * HIDDEN] == []


def carried(method):
    _, run = learner_and_run(method)
    return sum(leaf.nbytes for leaf in jax.tree.leaves(run.carry)), run


def test_bytes_carried():
    one, run = carried("uoro")
    params, state = (sum(leaf.nbytes for leaf in jax.tree.leaves(part)) for part in (run.params, run.state))
    assert one == params + state + run.carry.key.nbytes
    assert carried("uoro:rank=8")[0] == 8 * one
    assert carried("uoro:window=16")[0] == one
    assert carried("rtrl")[0] == HIDDEN * params
    assert carried("bptt")[0] == 0
    readout = sum(leaf.nbytes for leaf in jax.tree.leaves(run.params["readout"]))
    assert carried("snap1")[0] == carried("snap1:window=16")[0] == params - readout


@pytest.mark.parametrize("method", ["uoro", "uoro:rank=8", "uoro:window=16", "bptt:16", "rtrl", "snap1"])
def test_one_trace_and_one_compilation(method):
    """The model is traced once, and chunks of one length are compiled once, regardless of the length of the stream."""
    cell, traces, compilations = norewind.cells.gru(3, 8, 3), [], []

    def transition(params, state, x):
        traces.append(x)
        return cell.transition(params, state, x)

    counting = DeclaredTransition(transition, structure_of(cell.transition))
    learner, run = learner_and_run(method, cell._replace(transition=counting))
    chunk = jnp.zeros((4, norewind.registry.parse_method(method).window), int)
    chunk = chunk[:, 0] if chunk.shape[1] == 1 else chunk
    run, _, _ = learner.scan(run, chunk, chunk)
    once = len(traces)
    with counted(compilations):
        for _ in range(3):
            run, _, _ = learner.scan(run, chunk, chunk)
    assert once == 1
    assert len(traces) == once
    assert compilations == []


class counted:
    """Collects the names of the programs that JAX compiles inside the `with`."""

    def __init__(self, names):
        self.names, self.open = names, True
        jax.monitoring.register_event_duration_secs_listener(self.heard)

    def heard(self, event, seconds, **details):
        if self.open and event.endswith("backend_compile_duration"):
            self.names.append(event)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.open = False


def test_carries_share_one_evaluation_of_the_model():
    """In rank-8 UORO, the tanh of the candidate is computed once, not eight times."""
    learner, run = learner_and_run("uoro:rank=8")
    program = str(jax.make_jaxpr(learner.scan)(run, jnp.zeros(4, int), jnp.zeros(4, int)))
    shapes = re.findall(r":f\d+\[([\d,]*)\] = tanh", program)
    assert shapes == [str(HIDDEN)]


def test_imports_do_not_start_jax():
    """Otherwise single calls would be handed to another thread: the setting works only if nothing has run yet."""
    code = (
        "import importlib, sys; from jax._src import xla_bridge\n"
        "for module in sys.argv[1:]:\n"
        "    importlib.import_module(module); assert not xla_bridge.backends_are_initialized(), module"
    )
    modules = ("norewind.api", "norewind.training.auto", "norewind.forecasting.models")
    assert subprocess.run([sys.executable, "-c", code, *modules], check=False).returncode == 0
