"""A first example that runs in a minute: a GRU learns aⁿbⁿ online with UORO, sample by sample.

python examples/demo.py --samples 2000000 --seed 0 --out runs/demo
"""

import argparse
import signal
import sys
import time
from pathlib import Path

import jax
import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import norewind
from norewind.core.losses import BIT, cross_entropy
from norewind.streams import TaskStream

EVERY = 20_000  # samples between points of the curve
RECENT = 100_000  # samples in the running mean


def main() -> None:
    options = parse_options()
    task = norewind.tasks.anbn(1, 32)
    cell = norewind.cells.gru(inputs=3, hidden=64, outputs=3)
    estimator = norewind.uoro(cell.transition, cross_entropy)
    learner = norewind.online(estimator, norewind.adam(norewind.inverse_sqrt(1e-3, alpha=0.03)))
    init_key, noise_key = jax.random.split(jax.random.key(options.seed))
    run = learner.init(cell.init(init_key), cell.initial_state(), noise_key)

    print(f"GRU-64 learns {task.name} with UORO and Adam at every sample, in one pass, storing nothing.")
    print(f"bits per sample: {task.memoryless:.3f} without memory, {task.floor:.3f} is the floor.")
    started = time.perf_counter()
    curve: list[float] = []  # mean bits of each interval
    levels = f"(floor {task.floor:.3f}, memoryless {task.memoryless:.3f})"
    stop: list[int] = []  # Ctrl-C ends the run early, with its figure
    signal.signal(signal.SIGINT, lambda number, frame: stop.append(number))
    with progress_bar() as progress:
        bar = progress.add_task("", total=options.samples, bits="compiling")

        def show(line):
            curve.append(line["loss"] / BIT)
            bits = f"{recent(curve):.3f} bits {levels}"
            progress.update(bar, completed=line["samples"], bits=bits)
            if progress.disable and len(curve) % 5 == 0:
                print(f"{line['samples']:>12,} samples  {bits}", flush=True)

        fitted = norewind.fit(
            TaskStream(task, options.seed),
            learner,
            run,
            samples=options.samples,
            intervals=norewind.training.Intervals(metrics_every=EVERY),
            hooks=norewind.training.Hooks(metrics=show, should_stop=lambda: bool(stop)),
        )
    if not curve:
        return
    seconds = time.perf_counter() - started

    figure = draw(curve, task, options.out / "anbn.png")
    seen, level = fitted.samples, recent(curve)
    print(f"{seen:,} samples in {seconds:.0f} s ({seen / seconds:,.0f} a second), seed {options.seed}")
    gap = f"{level - task.floor:.4f} above the floor of {task.floor:.4f}"
    print(f"last {RECENT:,} samples: {level:.4f} bits each, {gap}")
    print(f"learning curve: {figure}")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="A GRU learns the language a^n b^n online with UORO.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--samples", type=lambda text: int(float(text)), default=2_000_000, help="how many to learn from"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the text, the weights and the noise")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of the figure")
    return parser.parse_args()


def progress_bar() -> Progress:
    """A progress bar on a terminal. Otherwise it is disabled, and plain lines are printed."""
    return Progress(
        BarColumn(bar_width=16),  # all of it fits into 80 columns
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[bits]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        disable=not sys.stdout.isatty(),
    )


def recent(curve: list[float]) -> float:
    """The mean over the recent samples."""
    return float(np.mean(curve[-RECENT // EVERY :]))


def draw(curve: list[float], task: norewind.tasks.Text, path: Path) -> Path:
    """Draw the learning curve, between the memoryless level and the floor.

    Args:
        curve: the mean bits of each interval.
        task: the task.
        path: the figure.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    samples = EVERY * np.arange(1, len(curve) + 1)
    width = min(RECENT // EVERY, len(curve))
    smooth = np.convolve(curve, np.ones(width) / width, mode="valid")
    figure, axes = plt.subplots(figsize=(7, 4.2), constrained_layout=True)
    axes.plot(samples, curve, color="0.75", linewidth=0.8, label=f"every {EVERY:,} samples")
    axes.plot(samples[width - 1 :], smooth, color="tab:blue", linewidth=2, label=f"mean of the last {RECENT:,}")
    axes.axhline(task.memoryless, color="tab:orange", linestyle="--", label=f"memoryless: {task.memoryless:.3f}")
    axes.axhline(task.floor, color="black", linestyle=":", label=f"floor (entropy rate): {task.floor:.3f}")
    axes.set(
        title="A GRU-64 learns aⁿbⁿ(1,32) online with UORO",
        xlabel="samples",
        ylabel="bits per sample",
        ylim=(0.12, 0.42),
        xlim=(0, samples[-1]),
    )
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g}M")
    axes.legend(frameon=False, loc="upper right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


if __name__ == "__main__":
    main()
