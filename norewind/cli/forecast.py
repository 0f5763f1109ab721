"""`norewind forecast`: the next rows of a table."""

import csv
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional

from norewind.runs.settings import SettingsError, option

MOST = 100_000


def forecast(
    run: Annotated[Path, Positional],
    *,
    steps: Annotated[int | None, option("ROWS", "the horizon of the run; 24 if it is 1")] = None,
    format: Literal["jsonl", "csv"] = "jsonl",
    figure: Annotated[Path | None, option("FILE", "forecast.png in the run folder")] = None,
) -> None:
    """Forecast the rows after the end of a run's stream, with standard deviations.

    A run with a horizon of H forecasts H rows directly. For later rows, it is given its own
    forecasts as input; a class is only forecast up to H rows ahead. The run itself is not
    changed, and its source is not read. If the table has regular times, forecasts have times.

        norewind forecast runs/power --steps 24 --format csv > next.csv

    For a run with keys, the next rows of every key, up to the horizon, are printed as JSON lines.

    Args:
        run: The run folder.
        steps: The number of rows to forecast.
        format: The output format: JSON lines or CSV.
        figure: Where to draw the newest rows and the forecast; .png, .pdf or .svg.
    """
    if steps is not None and not 1 <= steps <= MOST:
        raise SettingsError(f"--steps must be from 1 to {MOST:,}, but it is {steps}.")
    if figure is not None and figure.suffix not in (".png", ".pdf", ".svg"):
        raise SettingsError(f"--figure must end in .png, .pdf or .svg, not {figure}.")
    import numpy as np

    from norewind.instruments import row_figures
    from norewind.runs.folder import FORECAST, saved_run, settings_of
    from norewind.runs.predict import forecast as ahead
    from norewind.runs.predict import forecast_class
    from norewind.runs.train import print_lines

    if settings_of(run).key is not None:
        from norewind.runs.fleet_forecast import fleet_forecasts

        if format == "csv" or figure is not None:
            raise SettingsError("a run with keys prints JSON lines only: leave out --format csv and --figure.")
        for entry in fleet_forecasts(run, settings_of(run), steps):
            print_lines([entry])
        return
    settings, saved = saved_run(run)
    if settings.loss == "classes":
        if figure is not None:
            raise SettingsError("--figure: this run forecasts a class, for which there is no figure. Leave it out.")
        entries, columns = forecast_class(settings, saved, steps), []
    else:
        result = ahead(settings, saved, steps)
        entries, columns, path = result.entries(), result.columns, figure or run / FORECAST
        both = np.stack([result.means, result.deviations], axis=-1)
        try:
            row_figures.draw_stretch(result.recent, columns, result.last, path, both, result.times)
            print(f"See {path}.", file=sys.stderr)
        except OSError as error:
            if figure is not None:
                raise
            # Who may only read the run can still ask for its forecast.
            print(f"There is no figure: {path}: {error.strerror}.", file=sys.stderr)
    if format == "jsonl":
        print_lines(entries)
    else:
        print_csv(entries, columns)


def print_csv(entries: list[dict[str, Any]], columns: list[str]) -> None:
    """Forecasts as CSV; of a class, `columns` is empty."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    time = ["time"] if "time" in entries[0] else []
    names = [*columns, *(f"{column} deviation" for column in columns)] or ["forecast", "probability"]
    writer.writerow(["row", *time, *names])
    for entry in entries:
        both = [*entry["forecast"].values(), *entry["deviation"].values()] if columns else map(entry.get, names)
        writer.writerow([entry["for"], *map(entry.get, time), *both])
    sys.stdout.flush()
