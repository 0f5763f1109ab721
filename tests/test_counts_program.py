"""The compiled loop of counts: tables are updated in place, and a bit launches few kernels."""

import math
import re

import jax
import jax.numpy as jnp
import pytest
from quick import AS_USERS_DO

from norewind.learners.counts import counts

# Kernels that one bit may launch, as the compilers of the two JAX versions make them today.
KERNELS = {"0.12": 30, "0.10": 38}
COMPILER = ".".join(jax.__version__.split(".")[:2])
BYTES_OF = {"u8": 1, "pred": 1, "s32": 4, "u32": 4, "f32": 4}
FREE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast"}


@pytest.fixture(scope="module", params=[False, True], ids=["losses", "outputs"])
def program(request):
    """Whether outputs are asked for, and the compiled program."""
    with jax.enable_x64(False):
        learner = counts(16, megabytes=1) if request.param else counts(megabytes=12)
        run = jax.eval_shape(learner.init)
        stream = jax.ShapeDtypeStruct((256,), jnp.int32)
        loop = jax.jit(
            lambda run, xs, targets, count: learner.scan(run, xs, targets, count=count, outputs=request.param),
            donate_argnums=0,
            compiler_options=AS_USERS_DO,
        )
        compiled = loop.lower(run, stream, stream, jax.ShapeDtypeStruct((), jnp.int32)).compile()
    return request.param, compiled.as_text(), run


def instructions(program):
    """(operation, bytes of the largest array in its result) of every line of a program."""
    found = re.findall(r"^ +(?:ROOT )?%?[\w.\-]+ = (.*?) ([a-z\-]+)\(", program, re.M)
    return [(operation, size_of(shape)) for shape, operation in found if operation not in FREE]


def size_of(shape):
    arrays = re.findall(r"(u8|pred|s32|u32|f32)\[([\d,]*)\]", shape)
    return max((BYTES_OF[kind] * math.prod(int(n) for n in dims.split(",") if n) for kind, dims in arrays), default=0)


def test_nothing_large_is_copied(program):
    outputs, text, run = program
    if outputs and COMPILER == "0.10":
        pytest.skip("only newer compilers read before they write, and so need no copy of the weights")
    assert max(size for _, size in instructions(text)) >= run.table.size * 4, "the table is written somewhere"
    assert [size for operation, size in instructions(text) if operation == "copy" and size > 4096] == []


def test_the_run_is_given_back_in_its_own_memory(program):
    _, text, run = program
    aliased = set(re.findall(r"\((\d+), \{\}, (?:may|must)-alias\)", text.splitlines()[0]))
    assert len(aliased) == len(jax.tree.leaves(run))


def test_a_bit_launches_few_kernels(program):
    outputs, text, _ = program
    if outputs or COMPILER not in KERNELS:
        pytest.skip("outputs take many more, and the number depends on the compiler")
    computations = dict(re.findall(r"^%?([\w.\-]+) \(.*?\) -> .*?\{\n(.*?)^\}", text, re.M | re.S))
    sizes = [len(instructions(computations[name])) for name in set(re.findall(r"body=%?([\w.\-]+)", text))]
    over_symbols, *over_bits = sorted(sizes, reverse=True)
    assert len(over_bits) == 2
    assert max(over_bits) <= KERNELS[COMPILER]
    assert over_symbols <= 2 * KERNELS[COMPILER]
