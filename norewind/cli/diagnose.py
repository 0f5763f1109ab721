"""`norewind diagnose`: how far each method is from the exact gradient."""

from functools import cache
from pathlib import Path
from typing import Literal


def diagnose(
    *,
    methods: str = "uoro,nobacktrack,bptt:5",
    task: Literal["anbn", "brackets"] = "anbn",
    cell: Literal["elman", "feedback_reservoir", "gru", "liquid", "lstm", "plain_lstm", "reservoir", "rnn"] = "elman",
    sizes: tuple[int, ...] = (8, 16, 32),
    steps: int = 100,
    keys: int = 100,
    repeats: int = 1,
    seed: int = 0,
    moving: float | None = None,
    readout: bool = False,
    out: Path = Path("results/diagnose"),
) -> None:
    """Measure bias, variance and cosine to the exact gradient, against time and against the size of the model.

    Args:
        methods: separated by commas, with options after a colon, e.g. uoro,uoro:memory=4,rank=8,bptt:16.
        task: the text to read.
        cell: the model.
        sizes: its sizes.
        steps: how many characters to read.
        keys: how often to draw each method's noise.
        repeats: how many models of each size to draw; with several, the findings are means over them.
        seed: of the text and the noise, and of the weights of the first model.
        moving: let the parameters move, by the exact gradient and Adam at this rate; otherwise they are frozen.
        readout: also compare the parameters that do not reach the state, whose gradient is exact anyway.
        out: the folder for table.md, diagnosis.json and diagnosis.png.
    """
    import jax

    import norewind
    from norewind.methods import parse_methods
    from norewind.named import CELLS, TASKS

    text = TASKS[task]()
    symbols = len(text.alphabet)

    @cache  # models of one size share their transition, and with it what is compiled
    def made(size):
        return CELLS[cell](symbols, size, symbols)

    def model(size, number):
        params = made(size).init(jax.random.key(seed + number))
        return made(size).transition, norewind.losses.cross_entropy, params, made(size).initial_state()

    try:
        report = norewind.diagnose(
            parse_methods(methods),
            model,
            next(text.pairs(seed, steps)),
            sizes=sizes,
            repeats=repeats,
            keys=keys,
            seed=seed,
            optimizer=None if moving is None else norewind.adam(moving),
            readout=readout,
        )
    except ValueError as error:
        raise SystemExit(f"norewind diagnose: {error}") from None
    report.save(out)
    print(f"{report}\n\nTable, data and figure are in {out}.")
