"""PyTorch modules as cells: outputs and gradients are PyTorch's, and learned parameters can be written back."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import norewind
from norewind.cells import from_torch, to_torch
from norewind.cells.torch_operations import OPERATIONS

torch = pytest.importorskip("torch")
nn = torch.nn
INPUTS, HIDDEN, STEPS = 3, 5, 6


@pytest.fixture(autouse=True)
def single_precision():
    with jax.enable_x64(False):
        yield


class Own(nn.Module):
    """Two layers, a layer norm, an MLP, and a state that is a dict."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.GRUCell(INPUTS, HIDDEN), nn.LSTMCell(HIDDEN, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 7), nn.GELU(), nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 2))
        self.register_buffer("gain", torch.tensor(1.5))

    def forward(self, x, state):
        h = self.first(x, state["h"])
        a, c = self.second(self.norm(h), (state["a"], state["c"]))
        return self.mlp(torch.cat([a, h])[:HIDDEN] * self.gain), {"h": h, "c": c, "a": a}


class Layers(nn.Module):
    """Layers with an unusual use of dimensions, or with rows that are not trained."""

    def __init__(self):
        super().__init__()
        self.first, self.table = nn.Linear(INPUTS, 6), nn.Embedding(4, 6, padding_idx=1)
        self.convolution = nn.Conv1d(2, 4, 2, stride=2, padding=1, groups=2)
        self.groups, self.batch = nn.GroupNorm(2, 4), nn.BatchNorm1d(4)
        self.attention, self.pairs = nn.MultiheadAttention(2, 1, batch_first=True), nn.Bilinear(6, 8, HIDDEN)
        self.batch.running_mean += 0.3
        self.eval()

    def forward(self, x, h):
        z = self.first(x) + self.table((x[0] > 0).long() + (x[1] > 0).long())
        image = self.batch(self.groups(self.convolution(z.view(1, 2, 3))))
        seen, _ = self.attention(z.view(1, 3, 2), z.view(1, 3, 2), z.view(1, 3, 2))
        h = torch.tanh(self.pairs(seen.flatten(), image.flatten()) + h)
        return h, h


class Functions(nn.Module):
    """A module written by hand."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(INPUTS, HIDDEN)

    def forward(self, x, h):
        z = self.first(x) + h
        z = z.clone()
        z[1] = z[0] / 2
        z[2:4] = z[:2].flip(0)
        scaled = (
            nn.functional.normalize(z, dim=0) + z.sum() / 9 + z.mean() + z.std() + z.norm(1) / 9 + z.norm(float("inf"))
        )
        masked = z.masked_fill(z < 0, 0.3) + torch.logsumexp(z, 0) + z.max(0)[0] + z.min()
        moved = torch.roll(z, 1) + z[[0, 2, 4, 1, 3]] + nn.functional.pad(z[None, 1:-1], (0, 2, 0, 1), value=0.5)[0]
        kinds = (z * 3).long().float() + ((z > 0) & (z < 1)).float() * z + torch.arange(HIDDEN) * z
        zero = (h * 0).norm() + torch.tril(torch.outer(z, z)).cumsum(0)[-1] / 9 + z.clamp(-0.5, 0.5).repeat(2)[:HIDDEN]
        return torch.tanh((scaled + masked + moved + kinds + zero) / 20), torch.tanh(z)


MODULES = {
    "RNNCell": lambda: nn.RNNCell(INPUTS, HIDDEN, nonlinearity="relu"),
    "GRUCell": lambda: nn.GRUCell(INPUTS, HIDDEN),
    "LSTMCell": lambda: nn.LSTMCell(INPUTS, HIDDEN, bias=False),
    "RNN": lambda: nn.RNN(INPUTS, HIDDEN, 2),
    "GRU": lambda: nn.GRU(INPUTS, HIDDEN, 2),
    "LSTM": lambda: nn.LSTM(INPUTS, HIDDEN, 2),
    "own": Own,
    "layers": Layers,
    "functions": Functions,
}
START = {name: np.zeros(HIDDEN) for name in ("h", "a", "c")}
STARTS = {"own": START, "layers": np.zeros(HIDDEN), "functions": np.zeros(HIDDEN)}


def made(name):
    torch.manual_seed(0)
    module = MODULES[name]()
    return module, from_torch(module, INPUTS, initial_state=STARTS.get(name))


def torch_outputs(name, module, xs):
    """Return PyTorch's own outputs and gradients for the whole sequence."""
    if name in ("RNN", "GRU", "LSTM"):
        return module(xs)[0]
    zeros = torch.zeros(HIDDEN)
    state = {"own": dict.fromkeys(START, zeros), "LSTMCell": (zeros, zeros)}.get(name, zeros)
    outputs = []
    for x in xs:
        if name in STARTS:
            output, state = module(x, state)
        else:
            state = module(x, state)
            output = state[0] if name == "LSTMCell" else state
        outputs.append(output)
    return torch.stack(outputs)


@pytest.mark.parametrize("name", MODULES)
def test_outputs_and_gradients_are_those_of_pytorch(name):
    module, cell = made(name)
    xs = np.random.default_rng(1).normal(size=(STEPS, INPUTS)).astype(np.float32)

    def total(params):
        _, outputs = jax.lax.scan(lambda state, x: cell.transition(params, state, x), cell.initial_state(), xs)
        return jnp.sum(jnp.sin(outputs)), outputs

    params = cell.init(jax.random.key(0))
    (_, outputs), grads = jax.value_and_grad(total, has_aux=True)(params)
    expected = torch_outputs(name, module, torch.from_numpy(xs))
    np.testing.assert_allclose(outputs, expected.detach().numpy(), atol=1e-5)
    torch.sin(expected).sum().backward()
    for place, parameter in module.named_parameters():
        np.testing.assert_allclose(grads["module"][place], parameter.grad.numpy(), atol=1e-5, err_msg=place)


def test_trained_parameters_are_written_back():
    module, cell = made("GRU")
    loss = norewind.losses.squared_error
    learner = norewind.online(norewind.uoro(cell.transition, loss), optax.sgd(0.1))
    run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    xs = np.random.default_rng(2).normal(size=(STEPS, INPUTS)).astype(np.float32)
    run, _, _ = learner.scan(run, xs, np.ones((STEPS, HIDDEN), np.float32))
    before = module(torch.from_numpy(xs))[0].detach().numpy()
    to_torch(run.params, module)
    after = module(torch.from_numpy(xs))[0].detach().numpy()
    _, outputs = jax.lax.scan(lambda s, x: cell.transition(run.params, s, x), cell.initial_state(), xs)
    np.testing.assert_allclose(after, outputs, atol=1e-5)
    assert np.abs(after - before).max() > 1e-3


def test_a_readout_can_be_added_and_symbols_are_one_hot():
    cell = from_torch(nn.GRUCell(INPUTS, HIDDEN), INPUTS, 4)
    params = cell.init(jax.random.key(0))
    _, output = cell.transition(params, cell.initial_state(), jnp.array(1))
    _, same = cell.transition(params, cell.initial_state(), jnp.array([0.0, 1.0, 0.0]))
    assert output.shape == (4,)
    np.testing.assert_array_equal(output, same)


class Sorts(nn.Module):
    def forward(self, x, state):
        return torch.sort(x)[0], state


def test_unsupported_operations_are_named_in_the_error():
    with pytest.raises(ValueError, match=r"aten\.sort"):
        from_torch(Sorts(), INPUTS, initial_state=np.zeros(2))
    with pytest.raises(ValueError, match="state of a Sorts: pass initial_state="):
        from_torch(Sorts(), INPUTS)
    with pytest.raises(ValueError, match="bidirectional"):
        from_torch(nn.GRU(INPUTS, HIDDEN, bidirectional=True), INPUTS)
    with pytest.raises(ValueError, match="different module"):
        to_torch({"module": {}}, nn.GRUCell(INPUTS, HIDDEN))


class Counts(nn.Module):
    def forward(self, x, state):
        return x.sum() + state, state


def test_an_operation_that_is_converted_wrongly_is_noticed(monkeypatch):
    assert from_torch(Counts(), INPUTS, initial_state=np.zeros(2))
    monkeypatch.setitem(OPERATIONS, "aten.sum.dim_IntList", lambda x, dims: x)
    with pytest.raises(ValueError, match=r"aten\.sum\.dim_IntList was converted wrongly, with shape \(3,\)"):
        from_torch(Counts(), INPUTS, initial_state=np.zeros(2))


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda x, state: (nn.functional.conv_transpose1d(x[None], torch.ones(1, 1, 2)), state), "transposed"),
        (lambda x, state: (x.norm(0), state), "order 0"),
    ],
)
def test_layers_that_are_not_supported_are_named(forward, words):
    module = nn.Module()
    module.forward = forward
    with pytest.raises(ValueError, match=f"{words}.*Write that part in JAX"):
        from_torch(module, INPUTS, initial_state=np.zeros(2))


def test_double_precision_is_kept():
    module = nn.GRUCell(INPUTS, HIDDEN).double()
    with jax.enable_x64(True):
        cell = from_torch(module, INPUTS, 2)
        params, state = cell.init(jax.random.key(0)), cell.initial_state()
        assert {leaf.dtype for leaf in jax.tree.leaves((params, state))} == {np.dtype(np.float64)}
        x = np.linspace(-1, 1, INPUTS)
        new, _ = cell.transition(params, state, x)
        expected = module(torch.from_numpy(x), torch.zeros(HIDDEN, dtype=torch.float64)).detach().numpy()
        assert new.dtype == np.float64
        np.testing.assert_allclose(new, expected, atol=1e-12)


def test_single_precision_is_kept_where_double_is_enabled():
    with jax.enable_x64(True):
        cell = from_torch(nn.LSTMCell(INPUTS, HIDDEN), INPUTS, 2)
        params, state = cell.init(jax.random.key(0)), cell.initial_state()
        new, _ = cell.transition(params, state, np.array(1))
        assert {leaf.dtype for leaf in jax.tree.leaves((params, new))} == {np.dtype(np.float32)}
