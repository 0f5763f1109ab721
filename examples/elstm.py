"""Why an eLSTM with exact gradients diverges on growing sequences: its influence is never forgotten.

python -m examples.elstm --out results/elstm     # finished runs are kept
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple


class Remedy(NamedTuple):
    """What is done against divergence.

    Attributes:
        resets: clear the state and the influence where a sequence begins.
        clip: the largest norm of a gradient.
        recurrent: the standard deviation of the initial weights of the memory on itself; by default they are uniform
            in ±1. In the published code it is 0.1.
    """

    resets: bool = False
    clip: float | None = None
    recurrent: float | None = None


REMEDIES = {
    "none": Remedy(),
    "a new state and influence for every sequence": Remedy(resets=True),
    "gradients clipped at norm 1": Remedy(clip=1.0),
    "both": Remedy(resets=True, clip=1.0),
    "smaller initial recurrent weights": Remedy(recurrent=0.1),
    "all three": Remedy(resets=True, clip=1.0, recurrent=0.1),
}
# As in `examples.paper memory`, at the rate at which it diverges first.
HIDDEN, RATE, PIECE, SAMPLES = 128, 3e-3, 1_000, 450_000
# Pieces of the stream between two looks at the influence.
LOOK = 10


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.elstm", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/elstm"))
    parser.add_argument("--samples", type=int, default=SAMPLES)
    arguments = parser.parse_args()
    from norewind.sweeps.record import read_records, versions, write_record

    for name, remedy in REMEDIES.items():
        if name not in read_records(arguments.out):
            write_record(arguments.out, name, train(remedy, arguments.samples) | versions())
            (arguments.out / "table.md").write_text(table(read_records(arguments.out)))


def train(remedy: Remedy, samples: int) -> dict[str, Any]:
    """Train until the run has ended or is not finite, and watch the influence.

    Args:
        remedy: what is done against divergence.
        samples: the length of the run.

    Returns:
        The record of the run.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import norewind
    from examples.paper.copying import UNSCORED, Copying, Curriculum
    from norewind.core.run import NonFiniteError
    from norewind.estimators import snap1
    from norewind.scoring.score import bits_of

    def loss(output, target):
        return jnp.where(target < 0, 0.0, norewind.losses.cross_entropy(output, jnp.maximum(target, 0)))

    stream = Copying(letters=2, length=1)
    curriculum, symbols = Curriculum(stream), stream.symbols
    cell = norewind.cells.with_readout(norewind.cells.elstm(symbols, HIDDEN, symbols), symbols, symbols, hidden=64)
    clip = optax.identity() if remedy.clip is None else optax.clip_by_global_norm(remedy.clip)
    learner = norewind.online(snap1(cell.transition, loss), optax.chain(clip, norewind.adam(RATE)))
    keys = jax.random.split(jax.random.key(0))
    params = cell.init(keys[0])
    if remedy.recurrent is not None:
        own = params["cell"]["recurrent"]
        params["cell"]["recurrent"] = remedy.recurrent * jax.random.normal(keys[0], own.shape)
    run = learner.init(params, cell.initial_state(), keys[1])

    @jax.jit
    def growth(params, state, xs):
        """The mean of log |∂c'/∂c| along a piece, for the unit where it is largest."""

        def body(state, x):
            new, slope = jax.jvp(lambda s: cell.transition(params, s, x)[0], (state,), (jnp.ones_like(state),))
            return new, jnp.log(jnp.abs(slope) + 1e-30)

        return jnp.max(jnp.mean(jax.lax.scan(body, state, xs)[1], axis=0))

    seen, problem = [], None
    for piece in range(samples // PIECE):
        xs, targets = stream.take(PIECE)[:2]
        # The start of a sequence is the symbol after the letters and the blank.
        resets = jnp.asarray(xs == stream.letters + 1) if remedy.resets else None
        try:
            run, _, outputs = learner.scan(run, xs, targets, resets=resets, outputs=True)
        except NonFiniteError:
            problem = PIECE * (piece + 1)
            break
        scored = targets != UNSCORED
        bits = bits_of(np.asarray(outputs)[scored])[np.arange(scored.sum()), targets[scored]].mean()
        curriculum.add(bits)
        if piece % LOOK == LOOK - 1:
            influence = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(run.carry) if leaf.size)
            exponent = float(growth(run.params, run.state, xs))
            seen.append((PIECE * (piece + 1), float(bits), int(stream.length), influence, exponent))
    settings = {"hidden": HIDDEN, "rate": RATE, "samples": samples, "remedy": remedy._asdict()}
    names = ("samples", "bits", "length", "influence", "growth")
    curves = {name: list(values) for name, values in zip(names, zip(*seen, strict=True), strict=True)}
    return {"settings": settings, "diverged": problem, **curves}


def table(records: dict[str, dict[str, Any]]) -> str:
    """Return a Markdown table: one line per remedy.

    Args:
        records: the records by remedy.
    """
    from norewind.plotting.tables import markdown

    rows = []
    for name in REMEDIES:
        if (record := records.get(name)) is not None:
            end = "no" if record["diverged"] is None else f"before {record['diverged']:,} samples"
            largest = [f"{max(record[entry]):.2g}" for entry in ("influence", "growth")]
            rows.append([name, end, record["length"][-1], *largest])
    header = ["remedy", "diverged", "length reached", "largest influence", "largest growth per step"]
    return markdown(header, rows) + "\n"


if __name__ == "__main__":
    main()
