"""The figure of the benchmark: the time per sample of every system, by model size, and with many streams."""

from pathlib import Path

from norewind.plotting.figures import MARKERS, new_figure, save

NAMES = {
    "uoro": "UORO",
    "uoro:window=16": "UORO, window 16",
    "uoro:rank=8": "rank-8 UORO",
    "rtrl": "RTRL",
    "bptt": "one-step BPTT",
}


def draw(everything: dict[str, dict], path: Path) -> None:
    """Draw the figure: bars for every JAX version, lines for the latest.

    Args:
        everything: the records by JAX version and section, the latest version first.
        path: the figure; .png, .pdf or .svg.
    """
    figure, axes = new_figure(1, 3, panel=(5, 4.6), width_ratios=(1.25, 1, 1))
    bars, growth, streams = axes[0]
    _bars(bars, everything)
    latest, records = next(iter(everything.items()))
    if "sizes" in records:
        _growth(growth, latest, records["sizes"]["rows"])
    if "streams" in records:
        _streams(streams, latest, records)
    save(figure, path)


def short(us: float) -> str:
    """Format microseconds with about three digits."""
    return f"{us:.1f}" if us < 100 else f"{us:.0f}"


def _bars(axes, everything):
    measured = {jax: records["step"]["rows"] for jax, records in everything.items() if "step" in records}
    if not measured:
        return
    names = list(dict.fromkeys(row["case"] for rows in measured.values() for row in rows))
    height = 0.8 / len(measured)
    for index, (jax, rows) in enumerate(measured.items()):
        times = {row["case"]: row["us"] for row in rows}
        places = [names.index(name) + (index - (len(measured) - 1) / 2) * height for name in times]
        shade = ("0.25", "0.7")[index % 2]
        drawn = axes.barh(places, times.values(), height, color=shade, label=f"JAX {jax}")
        axes.bar_label(drawn, fmt=short, padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(right=4 * max(row["us"] for rows in measured.values() for row in rows))
    axes.set_xlabel("µs per sample")
    axes.set_title("GRU-64, one core")
    axes.legend(loc="upper right", fontsize=8)


def _growth(axes, jax, rows):
    for method, marker in zip(dict.fromkeys(row["case"] for row in rows), MARKERS, strict=False):
        points = [(row["hidden"], row["us"]) for row in rows if row["case"] == method]
        axes.loglog(*zip(*points, strict=True), marker=marker, label=NAMES.get(method, method), color="k", lw=1, ms=5,
                    mfc="w" if marker in "sD" else "k", ls="-" if marker in "os" else "--")  # fmt: skip
    ticks = sorted({row["hidden"] for row in rows})
    axes.set_xticks(ticks, map(str, ticks))
    axes.minorticks_off()
    axes.set_xlabel("hidden units")
    axes.set_ylabel("µs per sample")
    axes.set_title(f"GRU, growth with the size (JAX {jax})")
    axes.legend(fontsize=8)


def _streams(axes, jax, records):
    kinds = (
        ("streams", "parallel", "shared parameters, one core", "o-"),
        ("streams", "independent", "independent learners, one core", "s-"),
        ("two_cores", "parallel", "shared parameters, two cores", "o--"),
        ("two_cores", "independent", "independent learners, two cores", "s--"),
    )
    for section, case, label, style in kinds:
        rows = [row for row in records.get(section, {"rows": []})["rows"] if row["case"] == case]
        points = [(row["streams"], 1e3 / row["us"]) for row in rows]
        if points:
            axes.plot(
                *zip(*points, strict=True), style, color="k", mfc="w" if "s" in style else "k", label=label, ms=5, lw=1
            )
    axes.set_xscale("log", base=2)
    ticks = sorted({row["streams"] for row in records["streams"]["rows"]})
    axes.set_xticks(ticks, map(str, ticks))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("streams")
    axes.set_ylabel("thousand samples per second in total")
    axes.set_title(f"GRU-64, many streams (JAX {jax})", fontsize=11)
    axes.legend(fontsize=8, loc="lower left")
