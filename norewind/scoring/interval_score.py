"""Intervals in the units of a table, and how good they are: coverage, width, interval score and CRPS."""

from collections.abc import Sequence
from math import floor, isfinite, log10, nan
from typing import Any

import numpy as np

from norewind.engines.kernels import kernel
from norewind.scoring.metrics import last_half
from norewind.streams.table.scaling import MAX_DEVIATIONS
from norewind.wording import aligned, digits

# What is added up for each level, step and target: the number of targets, how many were inside, how many intervals were
# finite, and of these the widths in standard deviations, the widths and the interval scores in units.
COUNT, INSIDE, FINITE, WIDTH, WIDTH_IN_UNITS, SCORE = range(6)
# The number of steps and of targets in the closing table.
TABLE_STEPS, TABLE_TARGETS = 8, 3
KEYS = ("width", "score")


def bounds_in_units(bounds: np.ndarray, center: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Convert standardised bounds to the units of the stream.

    Standardised targets are clipped, so a bound beyond the largest of them is infinite. Bounds are moved outwards by
    what rounding may have cost: a value outside the result was also outside for the learner.

    Args:
        bounds: lower and upper bounds of each level in turn (rows, bounds, outputs).
        center: the mean of each output (rows, outputs).
        deviation: its standard deviation.
    """
    result = np.empty(bounds.shape)
    for place, outwards in enumerate((-np.inf, np.inf)):
        part = np.nextafter(bounds[:, place::2].astype(np.float32), np.float32(outwards)).astype(np.float64)
        part[part * np.sign(outwards) >= MAX_DEVIATIONS] = outwards
        slack = np.sign(outwards) * 4 * np.finfo(float).eps * np.abs(center)[:, None]
        result[:, place::2] = center[:, None] + deviation[:, None] * part + slack
    return result


def by_level(bounds: Sequence[float], levels: Sequence[float]) -> dict[str, list[float | None]]:
    """Arrange the bounds of one forecast by level, as [lower, upper], rounded outwards; None for an infinite one.

    Args:
        bounds: lower and upper bounds of each level in turn.
        levels: the levels.
    """
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    return {
        str(level): [rounded_outwards(low, -1), rounded_outwards(high, 1)]
        for level, (low, high) in zip(levels, pairs, strict=True)
    }


def rounded_outwards(bound: float, direction: int) -> float | None:
    """Round to seven significant digits, downwards or upwards; None if the bound is not finite.

    Args:
        bound: a bound of an interval.
        direction: -1 for a lower bound, 1 for an upper one.

    >>> rounded_outwards(1.23456744, 1), rounded_outwards(1.23456744, -1), rounded_outwards(float("inf"), 1)
    (1.234568, 1.234567, None)
    """
    if not isfinite(bound):
        return None
    nearest = float(f"{bound:.7g}")
    if (nearest - bound) * direction >= 0:
        return nearest
    return float(f"{nearest + direction * 10.0 ** (floor(log10(abs(bound))) - 6):.7g}")


def init_sums(levels: int, steps: int, columns: int) -> np.ndarray:
    """Return empty sums of `score_intervals`; the last entry along the first axis holds those of the CRPS.

    Args:
        levels: the number of levels; without any, nothing is added up.
        steps: the number of steps.
        columns: the number of targets.
    """
    return np.zeros((levels + 1 if levels else 0, steps, columns, SCORE + 1))


@kernel
def score_intervals(sums, levels, targets, means, bounds, deviations):
    """Add up how good the intervals of rows were, in the order of the rows.

    The CRPS is approximated by the weighted interval score (Bracher et al. 2021) of all levels and of the forecast,
    which stands for the median: a mean of pinball losses, twice.

    Args:
        sums: see `init_sums`; changed in place.
        levels: the coverage that each level asks for.
        targets: standardised targets (rows, outputs); NaN means unknown.
        means: the earlier forecasts of them.
        bounds: the earlier bounds of them (rows, bounds, outputs).
        deviations: the standard deviations of the targets.
    """
    columns = sums.shape[2]
    for row in range(len(targets)):
        for i in range(targets.shape[1]):
            target, deviation = targets[row, i], deviations[row, i]
            if np.isnan(target) or np.isnan(means[row, i]) or np.isnan(bounds[row, :, i]).any():
                continue
            weighted, are_finite = abs(target - means[row, i]) / 2, True
            for level in range(len(levels)):
                low, high = bounds[row, 2 * level, i], bounds[row, 2 * level + 1, i]
                total = sums[level, i // columns, i % columns]
                total[COUNT] += 1
                total[INSIDE] += low <= target <= high
                is_finite = low > -MAX_DEVIATIONS and high < MAX_DEVIATIONS
                are_finite = are_finite and is_finite
                if not is_finite:
                    continue
                missed = 1 - levels[level]
                score = high - low + 2 / missed * (max(0.0, low - target) + max(0.0, target - high))
                weighted += missed / 2 * score
                total[FINITE] += 1
                total[WIDTH] += high - low
                total[WIDTH_IN_UNITS] += deviation * (high - low)
                total[SCORE] += deviation * score
            if are_finite:
                total = sums[len(levels), i // columns, i % columns]
                total[FINITE] += 1
                total[SCORE] += deviation * weighted / (len(levels) + 0.5)


def interval_entries(
    sums: np.ndarray, levels: Sequence[float], columns: Sequence[str], places: Sequence[int]
) -> dict[str, Any]:
    """Return the entries of a line of metrics: `intervals` by level, and `crps` by column; none without targets.

    Args:
        sums: the sums of the interval between two lines.
        levels: the levels.
        columns: the names of the targets to write.
        places: the places of the steps to write.
    """
    if not sums[..., COUNT].any():
        return {}
    entries = {}
    for level, total in zip(levels, sums[:-1], strict=True):
        by_column, by_step, all = total.sum(axis=0), total.sum(axis=1)[list(places)], total.sum(axis=(0, 1))
        entry = {"targets": int(all[COUNT]), "coverage": _ratio(all, INSIDE), "finite": _ratio(all, FINITE)}
        entry |= {"width": _ratio(all, WIDTH, FINITE)}
        entry["columns"] = {
            name: {"width": _ratio(one, WIDTH_IN_UNITS, FINITE), "score": _ratio(one, SCORE, FINITE)}
            for name, one in zip(columns, by_column, strict=False)
        }
        if len(total) > 1:
            entry["by_step"] = {
                "coverage": [_ratio(one, INSIDE) for one in by_step],
                "width": [_ratio(one, WIDTH, FINITE) for one in by_step],
            }
        entries[str(level)] = entry
    crps = {name: _ratio(one, SCORE, FINITE) for name, one in zip(columns, sums[-1].sum(axis=0), strict=False)}
    return {"intervals": entries, "crps": crps}


def _ratio(sums: np.ndarray, part: int, of: int = COUNT) -> float | None:
    return digits(float(sums[part] / sums[of])) if sums[of] else None


def interval_table(lines: Sequence[dict[str, Any]], steps: Sequence[int]) -> str:
    """Format the coverage and the mean width of intervals over the last half of a run, by level and step, as text.

    Args:
        lines: the lines of metrics.
        steps: the steps whose coverage the lines have.
    """
    last = last_half([line for line in lines if line.get("intervals")])
    if not last:
        return ""
    counts = [next(iter(line["intervals"].values()))["targets"] for line in last]
    columns = list(last[-1]["crps"])[:TABLE_TARGETS]
    rows = [["intervals", "coverage", *(f"{name[:20]}: {what}" for name in columns for what in ("width", "score"))]]
    for level in last[-1]["intervals"]:
        entries = [line["intervals"][level] for line in last]
        found = [_mean([entry["columns"][name][key] for entry in entries], counts) for name in columns for key in KEYS]
        coverage = _mean([entry["coverage"] for entry in entries], counts)
        rows.append([level, f"{coverage:.4f}", *(f"{value:.4g}" for value in found)])
    crps = [f"{_mean([line['crps'][name] for line in last], counts):.4g}" for name in columns]
    rows.append(["CRPS", "", *(cell for value in crps for cell in ("", value))])
    text = aligned(rows)
    if len(steps) > 1:
        chosen = sorted({round(place) - 1 for place in np.geomspace(1, len(steps), TABLE_STEPS)})
        rows = [["interval, rows ahead", *(str(steps[place]) for place in chosen)]]
        for level in last[-1]["intervals"]:
            entries = [line["intervals"][level]["by_step"] for line in last]
            for key, title in (("coverage", "coverage"), ("width", "width in σ")):
                values = [_mean([entry[key][place] for entry in entries], counts) for place in chosen]
                rows.append([f"{level}: {title}", *(f"{value:.4f}" for value in values)])
        text += aligned(rows)
    return "\n".join(text)


def _mean(values: Sequence[float | None], weights: Sequence[float]) -> float:
    """Return the weighted mean of the known values; NaN without any."""
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else nan
