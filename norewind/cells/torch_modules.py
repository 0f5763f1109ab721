"""PyTorch modules as norewind cells: converted once, trained by JAX, and written back."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, init_readout, one_hot, read_out
from norewind.cells.torch_operations import OPERATIONS
from norewind.core.trees import Tree

INNER = "inner."
# Keywords of operations that specify where and how numbers are stored: they have no effect here.
IGNORED_OPTIONS = {"dtype", "device", "layout", "pin_memory", "memory_format", "requires_grad"}


def from_torch(module: Any, inputs: int, outputs: int | None = None, *, initial_state: Tree = None) -> Cell:
    """A cell from a PyTorch module that computes one step of a recurrence.

    The module is one of `RNNCell`, `GRUCell`, `LSTMCell`, `RNN`, `GRU` and `LSTM`, or one of
    your own with `module(x, state) -> (output, state)` for a single x, without a batch. It is
    converted once, through `torch.export`, and not used again: parameters start from its
    weights, regardless of the key. `to_torch` writes the trained weights back into the module.
    Needs PyTorch: run `pip install '.[torch]'` in a clone.

    Args:
        module: the PyTorch module.
        inputs: the size of its input; integer symbols are fed to it as one-hot vectors.
        outputs: the size of a linear readout to add; None if the module has its own.
        initial_state: the state to begin with, for a module of your own: arrays in a tuple, list or dict.

    Returns:
        The cell.

    Raises:
        ValueError: the module cannot be converted (the message names the operation) or run online, or its state is not
            known.
    """
    step, start = _one_step(module)
    start = start if initial_state is None else initial_state
    if start is None:
        raise ValueError(f"from_torch does not know the state of a {type(module).__name__}: pass initial_state=.")
    # In the precision of the module, if JAX has it: float64 needs jax_enable_x64.
    precision = next((value.detach().numpy().dtype for value in module.parameters()), np.dtype(np.float32))
    start = jax.tree.map(lambda leaf: _in_precision(np.asarray(leaf), precision), start)
    weights = {name: jnp.asarray(value.detach().numpy()) for name, value in module.named_parameters()}
    run = _converted(step, inputs, start, precision)
    precision = jax.dtypes.canonicalize_dtype(precision)
    width = jax.eval_shape(lambda: run(weights, np.zeros(inputs, precision), start)[0]).shape
    if outputs is not None and len(width) != 1:
        raise ValueError(f"from_torch: the module's output has shape {width}, but a readout needs a vector.")

    def init(key):
        readout = {} if outputs is None else {"readout": init_readout(key, width[0], outputs, precision)}
        return {"module": weights, **readout}

    def transition(params, state, x):
        output, state = run(params["module"], one_hot(x, inputs).astype(precision), state)
        return state, read_out(params.get("readout"), output)

    return Cell(init, lambda: jax.tree.map(jnp.asarray, start), transition, linear_readout=outputs is not None)


def _in_precision(leaf: np.ndarray, precision: np.dtype) -> np.ndarray:
    return leaf.astype(precision) if np.issubdtype(leaf.dtype, np.floating) else leaf


def to_torch(params: Tree, module: Any) -> None:
    """Write trained parameters back into the PyTorch module that `from_torch` converted, in place.

    A linear readout that `from_torch` added is not part of the module: it stays in `params["readout"]`.

    Args:
        params: the parameters of the cell.
        module: the PyTorch module.

    Raises:
        ValueError: the module has other parameters than the cell.
    """
    import torch  # pyright: ignore[reportMissingImports]

    own, given = dict(module.named_parameters()), params["module"]
    if own.keys() != given.keys():
        odd = sorted(own.keys() ^ given.keys())[0]
        raise ValueError(f"to_torch: {odd} is not in both the module and the parameters: it is a different module.")
    with torch.no_grad():
        for name, value in given.items():
            own[name].copy_(torch.from_numpy(np.array(value)))


def _one_step(module: Any) -> tuple[Any, Tree]:
    """The module as `step(x, state) -> (output, state)`, and its initial state, or None if that is unknown."""
    from torch import nn  # pyright: ignore[reportMissingImports]

    is_cell = isinstance(module, nn.RNNCell | nn.GRUCell | nn.LSTMCell)
    is_sequence = isinstance(module, nn.RNN | nn.GRU | nn.LSTM)
    has_memory = isinstance(module, nn.LSTMCell | nn.LSTM)

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x, state):
            if is_cell:
                state = self.inner(x, state)
                return state[0] if has_memory else state, state
            if is_sequence:
                # A sequence of one step, without a batch.
                output, state = self.inner(x.unsqueeze(0), state)
                return output.squeeze(0), state
            return self.inner(x, state)

    if not is_cell and not is_sequence:
        return Step(), None
    if is_sequence and (module.bidirectional or (module.dropout and module.training)):
        raise ValueError("from_torch: modules that are bidirectional or have dropout cannot be run online.")
    layers = (module.num_layers,) if is_sequence else ()
    h = np.zeros((*layers, getattr(module, "proj_size", 0) or module.hidden_size))
    return Step(), (h, np.zeros((*layers, module.hidden_size))) if has_memory else h


def _converted(
    step: Any, inputs: int, start: Tree, precision: np.dtype
) -> Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]:
    """Convert the exported program to JAX, operation by operation: `run(weights, x, state) -> (output, state)`."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch.utils import _pytree as pytree  # pyright: ignore[reportMissingImports]

    zeros = torch.from_numpy(np.zeros(inputs, precision))
    example = zeros, pytree.tree_map(lambda leaf: torch.from_numpy(np.array(leaf)), start)
    with warnings.catch_warnings():
        # The warning is about the second list in which RNN, GRU and LSTM keep their weights.
        warnings.simplefilter("ignore", UserWarning)
        rules = torch.export.default_decompositions()
        # In decomposed form, the gradient of a norm at zero is NaN.
        rules.pop(torch.ops.aten.linalg_vector_norm.default, None)
        program = torch.export.export(step, example).run_decompositions(rules)
    signature, nodes = program.graph_signature, list(program.graph.nodes)
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise ValueError("from_torch: the module changes its buffers or inputs in place. Keep them in its state.")
    unknown = {str(node.target) for node in nodes if node.op == "call_function"} - OPERATIONS.keys()
    if unknown:
        raise ValueError(f"from_torch cannot convert {', '.join(sorted(unknown))}. Write that part in JAX.")
    fixed = {**program.state_dict, **program.constants}
    sources = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    constants = {node: jnp.asarray(fixed[source].detach().numpy()) for node, source in sources.items()}

    def run(weights, x, state):
        given = iter(pytree.tree_leaves((x, state)))
        values: dict[str, Any] = {}

        def read(argument):
            return values[argument.name] if isinstance(argument, torch.fx.Node) else argument

        for node in nodes:
            if node.op == "placeholder":
                if name := signature.inputs_to_parameters.get(node.name):
                    values[node.name] = weights[name.removeprefix(INNER)]
                else:
                    values[node.name] = constants[node.name] if node.name in constants else next(given)
            elif node.op == "call_function":
                arguments = torch.fx.node.map_aggregate(node.args, read)
                named = {name: read(value) for name, value in node.kwargs.items() if name not in IGNORED_OPTIONS}
                values[node.name] = _as_exported(OPERATIONS[str(node.target)](*arguments, **named), node)
        # The last node is the output.
        return pytree.tree_unflatten([read(one) for one in nodes[-1].args[0]], program.call_spec.out_spec)

    return run


def _as_exported(value: Any, node: Any) -> Any:
    """Give the result of an operation the kind of dtype that it has in PyTorch; the precision stays that of JAX."""
    expected = node.meta.get("val")
    if not hasattr(expected, "dtype"):
        return value  # several results, or none
    if value.shape != tuple(expected.shape):
        shapes = f"{value.shape} instead of {tuple(expected.shape)}"
        raise ValueError(f"from_torch: {node.target} was converted wrongly, with shape {shapes}. Please report it.")
    is_bool, is_float = str(expected.dtype) == "torch.bool", expected.is_floating_point()
    kind, family = (bool, jnp.bool_) if is_bool else (float, jnp.floating) if is_float else (int, jnp.integer)
    return value if jnp.issubdtype(value.dtype, family) else value.astype(kind)
