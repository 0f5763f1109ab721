"""UORO in PyTorch, written with torch.func: eager, and with torch.compile."""

import numpy as np
import torch
from torch.func import jvp, vjp
from torch.nn.functional import cross_entropy, embedding

from benchmarks.ours import SYMBOLS, text
from benchmarks.timing import Case

torch.set_num_threads(1)


def gru(params, h, x):
    drive = embedding(x, params["input"]) + params["bias"]
    size = h.shape[0]
    reset, update = torch.sigmoid(drive[: 2 * size] + params["gates"] @ h).split(size)
    candidate = torch.tanh(drive[2 * size :] + params["candidate"] @ (reset * h))
    h = update * candidate + (1 - update) * h
    return h, h


def lstm(params, state, x):
    h, c = state.split(state.shape[0] // 2)
    drive = params["input"] @ embedding(x, params["embedding"]) + params["bias"] + params["recurrent"] @ h
    enter, forget, leave, new = drive.split(h.shape[0])
    c = torch.sigmoid(forget - 0.3) * c + torch.sigmoid(enter) * torch.tanh(new)
    h = torch.sigmoid(leave) * torch.tanh(c)
    return torch.cat([h, c]), h


def shapes(cell: str, n: int) -> dict[str, tuple[int, ...]]:
    readout = {"readout": (SYMBOLS, n), "readout_bias": (SYMBOLS,)}
    if cell == "gru":
        return {"input": (SYMBOLS, 3 * n), "gates": (2 * n, n), "candidate": (n, n), "bias": (3 * n,), **readout}
    return {"embedding": (SYMBOLS, n), "input": (4 * n, n), "recurrent": (4 * n, n), "bias": (4 * n,), **readout}


def norm(tensors):
    return torch.sqrt(sum((tensor * tensor).sum() for tensor in tensors))


def uoro_step(transition):
    """A function for one step of Algorithm 1 and of Adam."""

    def step(params, first, second, theta, s, state, x, target, count):
        def run(params, state):
            state, h = transition(params, state, x)
            logits = params["readout"] @ h + params["readout_bias"]
            return state, cross_entropy(logits[None], target[None])

        (new_state, loss), pullback = vjp(run, params, state)
        _, (pushed, loss_tangent) = jvp(lambda state: run(params, state), (state,), (s,))
        direct, _ = pullback((torch.zeros_like(state), torch.ones_like(loss)))
        signs = torch.randint(0, 2, state.shape).float() * 2 - 1
        back, _ = pullback((signs, torch.zeros_like(loss)))
        rho0 = torch.sqrt(norm(theta.values()) / (norm([pushed]) + 1e-7)) + 1e-7
        rho1 = torch.sqrt(norm(back.values()) / (norm([signs]) + 1e-7)) + 1e-7

        grads = {k: loss_tangent * theta[k] + direct[k] for k in params}
        count = count + 1
        rate = 1e-3 / (1 + 0.03 * torch.sqrt(count)) * torch.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        first = {k: 0.9 * first[k] + 0.1 * grads[k] for k in params}
        second = {k: 0.999 * second[k] + 0.001 * grads[k] ** 2 for k in params}
        params = {k: params[k] - rate * first[k] / (torch.sqrt(second[k]) + 1e-8) for k in params}
        theta = {k: theta[k] / rho0 + back[k] / rho1 for k in params}
        return (params, first, second, theta, rho0 * pushed + rho1 * signs, new_state), count, loss

    return step


def learning(name: str, length: int, cell: str = "gru", hidden: int = 64, compiled: bool = False) -> Case:
    """The case of learning from characters.

    Args:
        name: the name of the case.
        length: the number of characters.
        cell: the cell, `"gru"` or `"lstm"`.
        hidden: the number of hidden units.
        compiled: use `torch.compile`.
    """
    torch.manual_seed(0)
    params = {key: torch.randn(shape) / hidden**0.5 for key, shape in shapes(cell, hidden).items()}
    zeros = {key: torch.zeros_like(value) for key, value in params.items()}
    state = torch.zeros(hidden if cell == "gru" else 2 * hidden)
    step = uoro_step({"gru": gru, "lstm": lstm}[cell])
    if compiled:
        step = torch.compile(step, fullgraph=True)
    inputs, targets = (torch.from_numpy(np.array(part, np.int64)) for part in text(length))

    def run():
        everything, count = (params, zeros, zeros, zeros, torch.zeros_like(state), state), torch.tensor(0.0)
        with torch.no_grad():
            for x, target in zip(inputs, targets, strict=True):
                everything, count, _ = step(*everything, x, target, count)

    return Case(name, run, length)
