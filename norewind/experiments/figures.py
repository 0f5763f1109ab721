"""The figures, drawn from records. Dark to light tells the memory, solid or dashed the method: also in grey."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from norewind.experiments.groups import Group, Record, text_of
from norewind.experiments.paper import method_name

BLUES = {1: "#08306b", 2: "#2171b5", 16: "#7fb8de"}
ORANGES = {1: "#7f2704", 2: "#d94801", 4: "#d94801", 16: "#fdae6b"}
STYLES = {"uoro": "-", "bptt": (0, (4, 1.6))}
plt.rcParams.update({"font.size": 9, "axes.grid": True, "grid.alpha": 0.25, "figure.dpi": 150, "savefig.dpi": 150})


def save_figure(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure as PNG and as PDF."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        # Without dates the same numbers give the same file.
        figure.savefig(folder / f"{name}.{kind}", bbox_inches="tight", metadata=metadata)
    plt.close(figure)


def text_figure(groups: Sequence[Group], title: str, *, memoryless: str) -> Figure:
    """Learning curves on a text: one column per cell, the cumulated loss above, the recent one below."""
    cells = [cell for cell in ("lstm", "gru") if any(group.setting["cell"] == cell for group in groups)]
    figure, axes = plt.subplots(
        2, len(cells), figsize=(5.2 * len(cells), 6.4), sharex=True, sharey="row", squeeze=False, layout="constrained"
    )
    text = text_of(groups[0])
    margin = (text.naive - text.floor) * 0.12
    for column, cell in enumerate(cells):
        of_cell = [group for group in groups if group.setting["cell"] == cell]
        for row, cumulated in enumerate((True, False)):
            ax = axes[row, column]
            for group in sorted(of_cell, key=_order):
                _draw_curves(ax, group, cumulated=cumulated)
            last = column == len(cells) - 1
            _floor(ax, text.floor, f"{text.floor:.3f}\nentropy rate" if last else "")
            _floor(ax, text.naive, f"{text.naive:.3f}\n{memoryless}" if last else "")
            ax.set_ylim(text.floor - margin, text.naive + (text.naive - text.floor) * (1.1 if cumulated else 0.45))
            ax.set_xlim(0, groups[0].setting["characters"])
            ax.xaxis.set_major_formatter(lambda value, _: _short(value))
        axes[0, column].set_title(f"{cell.upper()}, {groups[0].setting['units']} units")
        axes[1, column].set_xlabel("characters")
    axes[0, 0].set_ylabel("bits per character\nsince the start")
    axes[1, 0].set_ylabel("bits per character\nrecently")
    figure.suptitle(title)
    handles, labels = [], []
    for ax in axes.flat:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            if label not in labels:
                handles.append(handle)
                labels.append(label)
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def influence_figure(records: Iterable[Record]) -> Figure:
    """Influence balancing: the loss above and θ below, one column per learning rate."""
    records = list(records)
    rates = sorted({record["setting"]["rate"] for record in records}, reverse=True)
    figure, axes = plt.subplots(
        2, len(rates), figsize=(3.6 * len(rates), 6.2), sharex=True, sharey="row", squeeze=False, layout="constrained"
    )
    target = records[0]["target"]
    windows = sorted({r["setting"]["window"] for r in records if r["setting"]["method"] == "bptt"})
    shades = plt.get_cmap("YlOrBr")(np.linspace(0.95, 0.4, max(1, len(windows))))
    dashes = [(0, (1, 1)), (0, (3, 1.4)), (0, (6, 1.6)), (0, (8, 1.5, 1.5, 1.5))]
    for column, rate in enumerate(rates):
        of_rate = [record for record in records if record["setting"]["rate"] == rate]
        for row, key in enumerate(("losses", "thetas")):
            ax = axes[row, column]
            uoro = [record for record in of_rate if record["setting"]["method"] == "uoro"]
            for number, record in enumerate(uoro):
                values = _plain(record[key])
                ax.plot(record["time"], values, color=BLUES[1], lw=0.5, alpha=0.35)
                if number == 0:
                    ax.plot([], [], color=BLUES[1], lw=1.8, label=f"UORO: median of {len(uoro)} seeds (thin: each)")
            if uoro:
                median = np.median([_plain(record[key]) for record in uoro], axis=0)
                ax.plot(uoro[0]["time"], median, color=BLUES[1], lw=1.8)
            for record in of_rate:
                if record["setting"]["method"] == "bptt":
                    place = windows.index(record["setting"]["window"])
                    ax.plot(
                        record["time"],
                        _plain(record[key]),
                        color=shades[place],
                        linestyle=dashes[place % len(dashes)],
                        lw=1.8,
                        label=f"truncated BPTT, T = {windows[place]}",
                    )
            ax.set_xscale("log")
            ax.set_xlim(left=5)
        axes[0, column].set_yscale("log")
        axes[0, column].set_ylim(1e-13, 1e13)
        axes[1, column].set_yscale("symlog", linthresh=1, linscale=1.2)
        axes[1, column].set_ylim(-1e4, 1e4)
        axes[1, column].axhline(target, color="black", lw=0.9, linestyle=(0, (1, 1)))
        axes[0, column].set_title(f"η = {rate:g} / (1 + √t)")
        axes[1, column].set_xlabel("time step")
    axes[0, 0].set_ylabel("loss")
    axes[1, 0].set_ylabel("θ")
    axes[1, 0].annotate(
        f"limit {target:.4f}", (0.02, target), xycoords=("axes fraction", "data"), va="top", fontsize=8, xytext=(0, -3),
        textcoords="offset points",
    )  # fmt: skip
    setting = records[0]["setting"]
    figure.suptitle(f"Influence balancing, {setting['n']} units, {setting['minus']} minus")
    entries = dict(zip(*reversed(axes[0, 0].get_legend_handles_labels()), strict=True))
    labels = sorted(
        entries, key=lambda label: (label.startswith("t"), int(label.split("= ")[-1]) if "= " in label else 0)
    )
    figure.legend([entries[label] for label in labels], labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw_curves(ax: Axes, group: Group, *, cumulated: bool) -> None:
    """The median over seeds, and a band from the best to the worst."""
    setting = group.setting
    characters, rows = group.curves(cumulated=cumulated)
    # A figure of a few inches shows a few hundred points.
    every = max(1, len(characters) // 400)
    characters, rows = characters[::every], rows[:, ::every]
    colour = (BLUES if setting["method"] == "uoro" else ORANGES).get(setting["memory"], "#555555")
    rows = np.where(np.isnan(rows), np.inf, rows)
    ax.fill_between(characters, rows.min(axis=0), np.minimum(rows.max(axis=0), 1e3), color=colour, alpha=0.15, lw=0)
    ax.plot(
        characters,
        np.median(rows, axis=0),
        color=colour,
        linestyle=STYLES[setting["method"]],
        lw=1.6,
        label=method_name(setting["method"], setting["memory"]),
    )


def _floor(ax: Axes, level: float, words: str) -> None:
    """A horizontal line with its name outside, at the right end, where no curve can be."""
    ax.axhline(level, color="black", lw=1.1, linestyle=(0, (1, 1)))
    ax.annotate(words, (1.01, level), xycoords=("axes fraction", "data"), va="center", fontsize=8)


def _short(count: float) -> str:
    """A number of characters for an axis: 50k, 2M."""
    if count >= 10**6:
        return f"{count / 10**6:g}M"
    return f"{count / 1000:g}k" if count >= 1000 else f"{count:g}"


def _order(group: Group) -> tuple:
    return group.setting["method"] != "uoro", group.setting["memory"]


def _plain(values: Sequence[float | None]) -> np.ndarray:
    """Numbers for a plot; what was not finite is missing."""
    return np.array([np.nan if value is None else value for value in values], float)
