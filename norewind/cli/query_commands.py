"""`norewind forecast`, `predict`, `sample` and `plot`: the commands that use trained runs."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional

from norewind.cli.common import as_options, check_figure, check_range, until_stopped
from norewind.training.settings import SettingsError, check_scopes, option

# The two bounds of an interval.
SIDES = ("low", "high")


def forecast(
    run: Annotated[Path, Positional],
    *,
    steps: Annotated[int | None, option("ROWS", "the horizon of the run")] = None,
    format: Literal["jsonl", "csv"] = "jsonl",
    figure: Annotated[Path | None, option("FILE", "forecast.png in the run folder")] = None,
) -> None:
    """Forecast the rows after the end of a run's stream, with standard deviations.

    A run with a horizon of H forecasts H rows directly. For later rows, it uses its own
    forecasts as inputs, with wider deviations; classes are forecast only up to H rows ahead. The run itself is not
    changed, and its source is not read. If the table has regular times, forecasts have times.

        norewind forecast runs/power --steps 24 --format csv > next.csv

    For a run with keys, the next rows of every key are forecast, up to the horizon.

    Args:
        run: The run folder.
        steps: The number of rows to forecast.
        format: The output format: JSON lines or CSV.
        figure: Where to draw the latest rows and the forecast; .png, .pdf or .svg.
    """
    check_figure("--figure", figure)
    from norewind.forecasting import forecasts
    from norewind.plotting import figures
    from norewind.training.folder import FORECAST, read_settings, saved_run
    from norewind.training.train_folder import print_lines

    check_range("--steps", steps, 1, forecasts.MAX_ROWS)
    if read_settings(run).key is not None:
        if figure is not None:
            raise SettingsError("--figure: there is no figure for a run with keys. Leave it out.")
        entries = forecasts.fleet_forecasts(run, read_settings(run), steps)
        if format == "csv":
            print_csv(entries)
        else:
            for entry in entries:
                print_lines([entry])
        return
    settings, saved = saved_run(run)
    if settings.loss == "classes" and figure is not None:
        raise SettingsError("--figure: this run forecasts a class, for which there is no figure. Leave it out.")
    result, path = forecasts.forecast(settings, saved, steps), figure or run / FORECAST
    if result.warning:
        print(f"Warning: {as_options(result.warning)}", file=sys.stderr)
    try:
        if result.columns:
            figures.save(result.figure(), path)
            print(f"See {path}.", file=sys.stderr)
    except OSError as error:
        if figure is not None:
            raise
        # The forecast is printed even if the run folder is read-only.
        print(f"The figure could not be written: {path}: {error.strerror}.", file=sys.stderr)
    if format == "jsonl":
        print_lines(result.entries)
    else:
        print_csv(result.entries)


def print_csv(entries: Iterable[dict[str, Any]]) -> None:
    """Print forecasts as CSV.

    Args:
        entries: the forecasts, one per row, or per key and row.
    """
    from norewind.plotting.tables import comma_separated

    entries = list(entries)
    if not entries:
        return
    columns = list(entries[0]["forecast"]) if isinstance(entries[0]["forecast"], dict) else []
    place = ["key", "step"] if "key" in entries[0] else ["for"]
    time = ["time"] if "time" in entries[0] else []
    deviations = columns if "deviation" in entries[0] else []
    names = [*columns, *(f"{column} deviation" for column in deviations)] or ["forecast", "probability"]
    intervals = entries[0].get("interval", {})
    names += [f"{column} {level} {side}" for column in intervals for level in intervals[column] for side in SIDES]
    rows = []
    for entry in entries:
        numbers = [*entry["forecast"].values(), *entry.get("deviation", {}).values()] if columns else None
        values = map(entry.get, names) if numbers is None else numbers
        bounds = [bound for levels in entry.get("interval", {}).values() for pair in levels.values() for bound in pair]
        rows.append([*map(entry.get, [*place, *time]), *values, *bounds])
    sys.stdout.write(comma_separated([*("row" if name == "for" else name for name in place), *time, *names], rows))
    sys.stdout.flush()


def predict(
    run: Annotated[Path, Positional],
    source: Annotated[str | None, Positional, option("[SOURCE]", "the run's own stream, from where it stopped")] = None,
    *,
    learn: bool = False,
    fresh: bool = False,
    samples: Annotated[float | None, option("N", "the whole stream")] = None,
    flush: Annotated[float | None, option("SECONDS", "wait for full chunks")] = None,
) -> None:
    """Predict every sample of a stream before it is seen, and report how surprising it was, as JSON lines.

    The run itself is not changed; `norewind resume` continues it.

    Args:
        run: The run folder.
        source: The stream to predict: a file, - for standard input, or a task.
        learn: Keep learning along the way.
        fresh: Start from the initial state instead of the last state of the run.
        samples: Stop after this many samples; can be written as 1e6.
        flush: Predict at most this many seconds after a sample arrives.
    """
    with until_stopped("predict") as stop:
        from norewind.forecasting.predict import predictions
        from norewind.training.folder import saved_run
        from norewind.training.train_folder import print_lines

        settings, saved = saved_run(run)
        settings = replace(settings, samples=samples, flush=flush)
        check_scopes(settings if source is None else replace(settings, source=source), {"flush"})
        for entries in predictions(settings, saved, source, learn=learn, fresh=fresh, should_stop=stop):
            print_lines(entries)


def sample(
    run: Annotated[Path, Positional],
    *,
    length: int = 500,
    prompt: Annotated[str, option("TEXT", "continue the stream")] = "",
    temperature: float = 1.0,
    seed: int = 0,
) -> None:
    """Generate text with a run that was trained on bytes, text or a task.

    Args:
        run: The run folder.
        length: The number of symbols to write.
        prompt: Text to read first.
        temperature: Divides the logits: values below 1 favour likely symbols, values above 1 unlikely ones.
        seed: The seed of the random choices.
    """
    check_range("--length", length, 1, 10**8)
    check_range("--temperature", temperature, 1e-30, 1e30)
    check_range("--seed", seed, 0, 2**32 - 1)
    from norewind.forecasting.predict import generate_text
    from norewind.training.folder import saved_run

    settings, saved = saved_run(run)
    text = generate_text(settings, saved, length, prompt=prompt, temperature=temperature, seed=seed)
    # Arguments that are not UTF-8 are held as surrogates.
    sys.stdout.buffer.write(prompt.encode(errors="surrogateescape") + text + b"\n")
    sys.stdout.flush()


def plot(runs: Annotated[tuple[Path, ...], Positional], *, out: Path = Path("curves.png")) -> None:
    """Draw the learning curves of several runs in one figure.

    Args:
        runs: The run folders.
        out: The file of the figure: .png, .pdf or .svg.
    """
    if not runs:
        raise SettingsError("name at least one run folder.")
    check_figure("--out", out)
    from norewind.cli.train_session import draw_curves

    out.parent.mkdir(parents=True, exist_ok=True)
    draw_curves(*runs, out=out)
    print(f"See {out}.")
