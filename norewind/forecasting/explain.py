"""Explanations of a run on rows: its main members, the parts of its forecast, and what has changed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from norewind.forecasting.predict import training_at_end
from norewind.learners.explanation import LIMIT, Explanation, ForecastPart
from norewind.scoring.row_score import RowScore
from norewind.streams.table.input_names import input_names
from norewind.training.folder import SavedRun
from norewind.training.settings import Settings, SettingsError
from norewind.training.training_loop import Training

# The main members are those with at least this weight.
LEAST_WEIGHT = 0.05
# The number of unusual rows that are listed, and of parts of a forecast as text, after the mean.
UNUSUAL_ROWS, LISTED_PARTS = 5, 8


def explain_run(
    settings: Settings, saved: SavedRun, lines: Sequence[dict[str, Any]], step: int | None = None
) -> dict[str, Any]:
    """Explain a run from its checkpoint and its lines of metrics; see `explain_training`.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.
        lines: its lines of metrics.
        step: the step of the forecast to explain, in rows ahead; by default the nearest.
    """
    check_explainable(settings, step)
    training = training_at_end(settings, saved)
    with training.windowed.stream:
        return explain_training(training, lines, step)


def check_explainable(settings: Settings, step: int | None) -> None:
    """Reject runs that cannot be explained, and steps that they do not forecast.

    Args:
        settings: the settings of the run.
        step: the step to explain, in rows ahead; None for the nearest.

    Raises:
        SettingsError: the run is not on the rows of one series, or does not forecast this step.
    """
    if not settings.has_rows:
        raise SettingsError("explain is for runs on rows, but this run predicts symbols.")
    if settings.key is not None:
        raise SettingsError("explain is for runs on one series, but this run has keys.")
    if step is not None and step not in settings.steps:
        raise SettingsError(f"step is {step}, but this run forecasts {settings.steps[0]} to {settings.steps[-1]}.")


def explain_training(training: Training, lines: Sequence[dict[str, Any]], step: int | None = None) -> dict[str, Any]:
    """Explain a run.

    Args:
        training: the run.
        lines: its lines of metrics so far.
        step: the step of the forecast to explain, in rows ahead; by default the nearest.

    Returns:
        JSON with the number of `samples`, and the `time` of the latest; the `periods` that were found; the main
        `members`, each with its mean `weight` in the latest line of metrics and the row (`since`, `time`) since which
        it has had at least half of that; the alarms of `drift`; for each target the `forecast` and its `parts`, which
        add up to it; and the most `unusual` of the latest rows, with the column and the expected value.
    """
    training.update_metrics()
    score, latest = training.score, lines[-1] if lines else {}
    result: dict[str, Any] = {"samples": training.samples}
    result |= {"time": latest["time"]} if latest.get("time") else {}
    found = training.learner.explain(training.run_so_far())
    if found is not None:
        result["periods"] = [period for period in found.periods if period]
    result["members"] = main_members(lines)
    result["drift"] = [alarm for line in lines for alarm in line.get("drift", [])]
    if isinstance(score, RowScore):
        if found is not None and found.parts:
            result |= _forecast_parts(training, score, found, step)
        result["unusual"] = unusual_rows(score, training.samples)
    return result


def main_members(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the members with the largest weights in the latest line, and since when each has had half of its weight.

    Args:
        lines: lines of metrics.
    """
    lines = [line for line in lines if line.get("weights")]
    weights = lines[-1]["weights"] if lines else {}
    members = []
    for name, weight in sorted(weights.items(), key=lambda member: -member[1]):
        if weight < LEAST_WEIGHT:
            continue
        place = len(lines)
        while place and lines[place - 1]["weights"].get(name, 0.0) >= weight / 2:
            place -= 1
        # The weights of a line are means over the rows since the line before it.
        start = lines[place - 1] if place else {"samples": 0}
        member = {"member": name, "weight": weight, "since": start["samples"] + 1}
        members.append(member | ({"time": start["time"]} if start.get("time") else {}))
    return members


def _forecast_parts(training: Training, score: RowScore, found: Explanation, step: int | None) -> dict[str, Any]:
    """Return the forecasts made at the latest row for one step, and their parts, in the units of the table."""
    place = 0 if step is None else score.steps.index(step)
    width, stream = len(score.columns), training.windowed.rows
    centers, scales = stream.scales_ahead(1)[-1, :, :2].T
    if np.isnan(scales).any():
        return {}
    names, forecasts = input_names(stream.layout, stream.position()), {}
    for column, (name, center, scale) in enumerate(zip(score.columns, centers, scales, strict=True)):
        parts = {"the mean so far": float(center)}
        for part, values in found.parts.items():
            if amount := float(scale * values[place * width + column]):
                text = part_name(part, names)
                parts[text] = parts.get(text, 0.0) + amount
        total = sum(parts.values())
        if total < score.lowest:
            parts[LIMIT] = parts.get(LIMIT, 0.0) + score.lowest - total
        ordered = sorted(parts.items(), key=lambda part: (part[0] != "the mean so far", -abs(part[1])))
        listed = [{"from": text, "adds": amount} for text, amount in ordered]
        forecasts[name] = {"forecast": sum(parts.values()), "parts": listed}
    row = training.samples + score.steps[place]
    return {"step": score.steps[place], "for": row, "forecast": forecasts}


def part_name(part: ForecastPart, inputs: Sequence[str]) -> str:
    """Describe what a part of a forecast comes from.

    Args:
        part: the part.
        inputs: the names of the inputs.

    >>> part_name(ForecastPart(0, 23), ["power"]), part_name(ForecastPart(0, 0, "the row before"), ["power"])
    ('power, 23 rows before the latest', 'power, latest row: change from the row before')
    """
    if part.member:
        return part.member
    if part.input < 0:
        return "constant of least squares"
    ago = f"{part.ago} row{'s' if part.ago > 1 else ''} before the latest" if part.ago else "latest row"
    return f"{inputs[part.input]}, {ago}" + (f": change from {part.change}" if part.change else "")


def unusual_rows(score: RowScore, last: int) -> list[dict[str, Any]]:
    """Return the latest rows with the largest errors, relative to the usual errors of their columns.

    Args:
        score: the score of the run.
        last: the number of the latest row.
    """
    recent = score.state.recent
    if not len(recent):
        return []
    values, expected, _ = np.moveaxis(recent, -1, 0)
    errors = np.abs(values - expected)
    known = ~np.isnan(errors)
    usual = np.array(
        [
            np.median(column[~np.isnan(column)]) if seen else np.nan
            for column, seen in zip(errors.T, known.any(axis=0), strict=True)
        ]
    )
    times = np.where(known & (usual > 0), errors / np.where(usual > 0, usual, 1), 0.0)
    rows = []
    for place in np.argsort(-times.max(axis=1), kind="stable")[:UNUSUAL_ROWS].tolist():
        column = int(times[place].argmax())
        if times[place, column] <= 0:
            break
        row: dict[str, Any] = {"sample": last - len(recent) + 1 + place}
        when = score.state.recent_times
        row |= {"time": when[place - len(recent)]} if len(when) == len(recent) and when[place] else {}
        row |= {"column": score.columns[column], "value": float(values[place, column])}
        rows.append(row | {"expected": float(expected[place, column]), "times_usual": round(times[place, column], 1)})
    return rows


def explanation_text(found: dict[str, Any]) -> str:
    """Write an explanation as text.

    Args:
        found: the result of `explain_run`.
    """

    def when(entry: dict[str, Any]) -> str:
        return f" ({entry['time']})" if "time" in entry else ""

    lines = [f"After {found['samples']:,} rows{when(found)}."]
    if found.get("periods"):
        lines[0] += f" Periods of the series: {' and '.join(map(str, found['periods']))} rows."
    if found["members"]:
        lines += ["", "Main members, with their weights:"]
        lines += [f"  {m['weight']:5.0%}  {m['member']}, since row {m['since']:,}{when(m)}" for m in found["members"]]
    lines += ["", "Drift:" if found["drift"] else "Drift: no alarms."]
    for alarm in found["drift"]:
        what = "the weight has moved to other members"
        if alarm["of"] == "errors":
            what = f"larger errors of {alarm['column']}, from about row {alarm['since']:,} on"
        lines.append(f"  row {alarm['sample']:,}{when(alarm)}: {what}")
    for column, forecast in found.get("forecast", {}).items():
        lines += ["", f"The forecast of {column} for row {found['for']:,} is {forecast['forecast']:.6g}, the sum of:"]
        parts = forecast["parts"]
        lines += [f"  {part['adds']:+12.6g}  {part['from']}" for part in parts[: LISTED_PARTS + 1]]
        if rest := parts[LISTED_PARTS + 1 :]:
            lines.append(f"  {sum(part['adds'] for part in rest):+12.6g}  {len(rest)} other parts")
    if found.get("unusual"):
        lines += ["", "The largest errors of the latest rows:"]
    for row in found.get("unusual", []):
        values = f"{row['column']} was {row['value']:.6g}, expected {row['expected']:.6g}"
        lines.append(f"  row {row['sample']:,}{when(row)}: {values} ({row['times_usual']:g} times the usual error)")
    return "\n".join(lines)
