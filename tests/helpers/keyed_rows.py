"""Rows with keys, and a learner for the run of each key."""

import jax
import numpy as np

import norewind


def learner(method="uoro", inputs=2, hidden=4, rate=1e-2, outputs=1):
    cell = norewind.cells.gru(inputs=inputs, hidden=hidden, outputs=outputs, symbols=False)
    estimator = getattr(norewind, method)(cell.transition, norewind.losses.known_squared_error)
    made = norewind.online(estimator, norewind.adam(norewind.inverse_sqrt(rate, 0.02)))
    return made, made.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))


def rows(count, keys, seed=0):
    """Rows of keys at different rates, in any order."""
    rng = np.random.default_rng(seed)
    names = [b"\x00\xff" * (1 + k % 3) + str(k).encode() for k in range(keys)]
    chosen = [names[k] for k in (keys * rng.random(count) ** 2).astype(int)]
    xs = rng.normal(size=(count, 2)).astype(np.float32)
    return np.array(chosen, object), xs, xs[:, :1] * 0.5 + 0.1


def scanned(fleet, keys, xs, ys, cuts):
    run, losses = fleet.init(), []
    for start, stop in zip([0, *cuts], [*cuts, len(keys)], strict=True):
        run, lost, _ = fleet.scan(run, norewind.fleets.Keyed(keys[start:stop], xs[start:stop]), ys[start:stop])
        losses.append(lost)
    return run, np.concatenate(losses)
