"""`norewind compare`: methods side by side."""

from pathlib import Path
from typing import Literal


def compare(
    *,
    methods: str = "uoro,nobacktrack,bptt:16,readout_only",
    task: Literal["anbn", "brackets"] = "anbn",
    cell: Literal["elman", "feedback_reservoir", "gru", "liquid", "lstm", "plain_lstm", "reservoir", "rnn"] = "gru",
    units: int = 64,
    characters: float = 1e5,
    seeds: int = 1,
    rate: float = 1e-3,
    alpha: float = 0.03,
    optimizer: Literal["adam", "sgd"] = "adam",
    out: Path = Path("results/compare"),
) -> None:
    """Train several methods on the same text from the same parameters, and show them in one table and figure.

    Args:
        methods: separated by commas, with options after a colon, e.g. uoro,uoro:memory=4,rank=8,rtrl,bptt:16.
        task: the text to predict.
        cell: the model. plain_lstm is the LSTM without embedding, which lstm97 needs.
        units: its size.
        characters: the length of each run (1e5 is understood).
        seeds: runs per method; with several, means and standard errors are shown.
        rate: the learning rate is rate / (1 + alpha √t).
        alpha: how fast it falls.
        optimizer: what takes the gradients.
        out: the folder for comparison.md, .csv, .json and .png.
    """
    from norewind.comparison import compare as run_comparison
    from norewind.methods import parse_methods

    try:
        result = run_comparison(
            parse_methods(methods),
            task=task,
            cell=cell,
            units=units,
            characters=int(characters),
            seeds=seeds,
            rate=rate,
            alpha=alpha,
            optimizer=optimizer,
            report=lambda line: print(line, flush=True),
        )
    except ValueError as error:
        raise SystemExit(f"norewind compare: {error}") from None
    result.save(out)
    print(f"\n{result}\n\nTable, data and figure are in {out}.")
