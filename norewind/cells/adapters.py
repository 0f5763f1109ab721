"""Recurrent cells of Equinox, Flax NNX and Haiku as norewind cells.

Each adapter takes a function that builds the library's cell, and adds a linear readout.
It imports the library only when it is called.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from norewind.cells.cell import Cell, init_readout, one_hot, read_out
from norewind.core.checks import ModelError
from norewind.core.structure import declare
from norewind.core.trees import Tree


def from_equinox(
    make: Callable[[jax.Array], Any], inputs: int, outputs: int, *, initial_state: Callable[[], Tree] | None = None
) -> Cell:
    """A cell from an Equinox module with `module(x, state) -> state`, such as GRUCell and LSTMCell.

    Integer symbols are fed to the module as one-hot vectors. The linear readout reads the first leaf of the state.

    Args:
        make: builds the module, `make(key)`. Its floating arrays are the parameters.
        inputs: the size of the input, or the number of symbols.
        outputs: the size of the readout.
        initial_state: a function that returns the initial state. Modules of your own need it.

    Returns:
        The cell.

    Raises:
        ModelError: `make` is a module or a class instead of a function that makes a module.

    >>> import equinox, jax, jax.numpy as jnp
    >>> cell = from_equinox(lambda key: equinox.nn.GRUCell(3, 8, key=key), inputs=3, outputs=3)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(2))
    >>> state.shape, output.shape
    ((8,), (3,))
    """
    import equinox as eqx

    _check_factory("from_equinox", make, eqx.Module, "lambda key: equinox.nn.GRUCell(3, 8, key=key)")
    example = make(jax.random.key(0))
    _, static = eqx.partition(example, eqx.is_inexact_array)

    def zeros():
        if not hasattr(example, "hidden_size"):
            name = type(example).__name__
            raise ValueError(f"from_equinox does not know the state of a {name}: pass initial_state=, a function.")
        h = jnp.zeros(example.hidden_size)
        return (h, h) if isinstance(example, eqx.nn.LSTMCell) else h

    def init_module(key):
        return eqx.filter(make(key), eqx.is_inexact_array)

    def module_step(params, state, x):
        state = eqx.combine(params, static)(x, state)
        return state, jax.tree.leaves(state)[0]

    return _with_readout(init_module, initial_state or zeros, module_step, inputs, outputs)


def from_flax(make: Callable[[Any], Any], inputs: int, outputs: int) -> Cell:
    """A cell from a Flax NNX recurrent cell, such as GRUCell and OptimizedLSTMCell.

    Integer symbols are fed to the module as one-hot vectors. The linear readout reads its output.

    Args:
        make: builds the module, `make(rngs)`. Its `nnx.Param` variables are the parameters.
        inputs: the size of the input, or the number of symbols.
        outputs: the size of the readout.

    Returns:
        The cell.

    Raises:
        ModelError: `make` is a module or a class instead of a function that makes a module.

    >>> from flax import nnx
    >>> import jax, jax.numpy as jnp
    >>> cell = from_flax(lambda rngs: nnx.GRUCell(3, 8, rngs=rngs), inputs=3, outputs=3)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(2))
    >>> state.shape, output.shape
    ((8,), (3,))
    """
    from flax import nnx

    _check_factory("from_flax", make, nnx.Module, "lambda rngs: nnx.GRUCell(3, 8, rngs=rngs)")

    def parts(key):
        module = make(nnx.Rngs(key))
        return module, *nnx.split(module, nnx.Param, ...)

    example, graph, shape, rest = parts(jax.random.key(0))

    def init_module(key):
        return nnx.to_pure_dict(parts(key)[2])

    def initial_state():
        return example.initialize_carry((inputs,), rngs=nnx.Rngs(0))

    def module_step(params, state, x):
        variables = jax.tree.map(lambda leaf: leaf, shape)
        nnx.replace_by_pure_dict(variables, params)
        return nnx.merge(graph, variables, rest)(state, x)

    return _with_readout(init_module, initial_state, module_step, inputs, outputs)


def from_haiku(make: Callable[[], Any], inputs: int, outputs: int) -> Cell:
    """A cell from a Haiku recurrent core, such as hk.GRU and hk.LSTM.

    Integer symbols are fed to the core as one-hot vectors. The linear readout reads its output.

    Args:
        make: builds the core inside a Haiku transform, `make()`. The core must not draw random numbers.
        inputs: the size of the input, or the number of symbols.
        outputs: the size of the readout.

    Returns:
        The cell.

    Raises:
        ModelError: `make` is a module or a class instead of a function that makes a module.

    >>> import haiku, jax, jax.numpy as jnp
    >>> cell = from_haiku(lambda: haiku.GRU(8), inputs=3, outputs=3)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(2))
    >>> state.shape, output.shape
    ((8,), (3,))
    """
    import haiku as hk

    _check_factory("from_haiku", make, hk.Module, "lambda: haiku.GRU(8)")
    core = hk.without_apply_rng(hk.transform(lambda x, state: make()(x, state)))
    start = hk.without_apply_rng(hk.transform(lambda: make().initial_state(None)))

    def init_module(key):
        return core.init(key, jnp.zeros(inputs), start.apply({}))

    def module_step(params, state, x):
        output, state = core.apply(params, x, state)
        return state, output

    return _with_readout(init_module, lambda: start.apply({}), module_step, inputs, outputs)


def _check_factory(caller: str, make: Any, module: type, example: str) -> None:
    is_class = isinstance(make, type) and issubclass(make, module)
    # Equinox also wraps functions in modules, such as those it compiles: they have `__wrapped__`.
    if not callable(make) or is_class or (isinstance(make, module) and not hasattr(make, "__wrapped__")):
        given = f"the class {make.__name__}" if is_class else f"a {type(make).__name__}"
        raise ModelError(f"{caller} takes a function that makes the module, such as {example}, not {given}.")


def _with_readout(init_module, initial_state, module_step, inputs: int, outputs: int) -> Cell:
    """Add a linear readout to a cell of another library, and feed integer symbols to it as one-hot vectors."""

    def init(key):
        module_key, readout_key = jax.random.split(key)
        module = init_module(module_key)
        _, hidden = jax.eval_shape(module_step, module, initial_state(), jnp.zeros(inputs))
        return {"cell": module, "readout": init_readout(readout_key, hidden.shape[0], outputs, hidden.dtype)}

    def transition(params, state, x):
        state, hidden = module_step(params["cell"], state, one_hot(x, inputs))
        return state, read_out(params["readout"], hidden)

    return Cell(init, initial_state, declare(transition, sizes=(inputs, outputs)), linear_readout=True)
