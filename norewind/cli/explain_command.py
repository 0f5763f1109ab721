"""`norewind explain`: why a run forecasts what it does, and what has changed."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from norewind.cli.common import check_figure
from norewind.training.settings import option


def explain(
    run: Annotated[Path, Positional],
    *,
    step: Annotated[int | None, option("ROWS", "the nearest step of the run")] = None,
    format: Literal["text", "json"] = "text",
    figure: Annotated[Path | None, option("FILE", "weights.png in the run folder")] = None,
) -> None:
    """Explain a run on rows: its members, the parts of its latest forecast, and what has changed.

    It prints the main members of the mixture and since when each has had its weight, the alarms of drift, the parts
    that add up to the forecast of each target, and the largest errors of the latest rows. It only reads the run folder;
    the run is not changed.

    Args:
        run: The run folder.
        step: The step of the forecast to explain, in rows ahead.
        format: The output format.
        figure: Where to draw the weights of the members over time; .png, .pdf or .svg.
    """
    check_figure("--figure", figure)
    from norewind.forecasting.explain import check_explainable, explain_run, explanation_text
    from norewind.plotting.figures import save
    from norewind.plotting.weights_figure import WEIGHTS_FIGURE, weights_figure
    from norewind.training.folder import read_settings, saved_run
    from norewind.training.log import METRICS, read_log

    check_explainable(read_settings(run), step)
    settings, saved = saved_run(run)
    lines = read_log(run / METRICS)
    found, path = explain_run(settings, saved, lines, step), figure or run / WEIGHTS_FIGURE
    print(json.dumps(found, ensure_ascii=False) if format == "json" else explanation_text(found))
    if not any(line.get("weights") for line in lines):
        return
    try:
        save(weights_figure(lines), path)
        print(f"See {path}.", file=sys.stderr)
    except OSError as error:
        if figure is not None:
            raise
        # The explanation is printed even if the run folder is read-only.
        print(f"The figure could not be written: {path}: {error.strerror}.", file=sys.stderr)
