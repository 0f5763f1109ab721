"""The main job in a minute: a GRU learns aⁿbⁿ online with UORO, character by character.

python examples/demo.py --characters 2000000 --seed 0 --out runs/demo
"""

import argparse
import sys
import time
from contextlib import suppress
from pathlib import Path

import jax
import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import norewind
from norewind.losses import BIT, cross_entropy

CHUNK = 20_000  # characters per compiled loop
RECENT = 100_000  # characters in the running mean


def main() -> None:
    options = parse_options()
    task = norewind.tasks.anbn(1, 32)
    cell = norewind.cells.gru(inputs=3, hidden=64, outputs=3)
    estimator = norewind.uoro(cell.transition, cross_entropy)
    learner = norewind.online(estimator, norewind.adam(norewind.inverse_sqrt(1e-3, alpha=0.03)))
    init_key, noise_key = jax.random.split(jax.random.key(options.seed))
    run = learner.init(cell.init(init_key), cell.initial_state(), noise_key)

    print(f"GRU-64 learns {task.name} with UORO, Adam at every character, one pass, nothing stored.")
    print(f"bits per character: {task.memoryless:.3f} without memory, {task.floor:.3f} is the floor.")
    started = time.perf_counter()
    curve: list[float] = []  # mean bits per character of each chunk
    stream = task.pairs(options.seed, CHUNK)
    levels = f"(floor {task.floor:.3f}, memoryless {task.memoryless:.3f})"
    with progress_bar() as progress:
        bar = progress.add_task("", total=options.characters, bpc="compiling")
        with suppress(KeyboardInterrupt):  # Ctrl-C ends the run early, with its figure
            for chunk in range(-(-options.characters // CHUNK)):
                run, losses = learner.scan(run, *next(stream))
                curve.append(float(losses.mean()) / BIT)
                bpc = f"{recent(curve):.3f} bits {levels}"
                progress.update(bar, advance=CHUNK, bpc=bpc)
                if progress.disable and chunk % 5 == 4:
                    print(f"{int(run.samples):>12,} characters  {bpc}", flush=True)
    if not curve:
        return
    seconds = time.perf_counter() - started

    figure = draw(curve, task, options.out / "anbn.png")
    seen, level = int(run.samples), recent(curve)
    print(f"{seen:,} characters in {seconds:.0f} s ({seen / seconds:,.0f} a second), seed {options.seed}")
    gap = f"{level - task.floor:.4f} above the floor of {task.floor:.4f}"
    print(f"last {RECENT:,} characters: {level:.4f} bits each, {gap}")
    print(f"learning curve: {figure}")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="A GRU learns the language a^n b^n online with UORO.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--characters", type=lambda text: int(float(text)), default=2_000_000, help="how many to read")
    parser.add_argument("--seed", type=int, default=0, help="of the text, the weights and the noise")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of the figure")
    return parser.parse_args()


def progress_bar() -> Progress:
    """A live bar on a terminal; elsewhere plain lines are printed instead."""
    return Progress(
        BarColumn(bar_width=16),  # all of it fits into 80 columns
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[bpc]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        disable=not sys.stdout.isatty(),
    )


def recent(curve: list[float]) -> float:
    """The mean over the last characters."""
    return float(np.mean(curve[-RECENT // CHUNK :]))


def draw(curve: list[float], task: norewind.tasks.Text, path: Path) -> Path:
    """The learning curve, between the level without memory and the floor."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    characters = CHUNK * np.arange(1, len(curve) + 1)
    width = min(RECENT // CHUNK, len(curve))
    smooth = np.convolve(curve, np.ones(width) / width, mode="valid")
    figure, axes = plt.subplots(figsize=(7, 4.2), constrained_layout=True)
    axes.plot(characters, curve, color="0.75", linewidth=0.8, label=f"every {CHUNK:,} characters")
    axes.plot(characters[width - 1 :], smooth, color="tab:blue", linewidth=2, label=f"mean of the last {RECENT:,}")
    axes.axhline(task.memoryless, color="tab:orange", linestyle="--", label=f"without counting: {task.memoryless:.3f}")
    axes.axhline(task.floor, color="black", linestyle=":", label=f"entropy rate: {task.floor:.3f}")
    axes.set(
        title="A GRU-64 learns aⁿbⁿ(1,32) online with UORO",
        xlabel="characters seen",
        ylabel="bits per character",
        ylim=(0.12, 0.42),
        xlim=(0, characters[-1]),
    )
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g}M")
    axes.legend(frameon=False, loc="upper right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


if __name__ == "__main__":
    main()
