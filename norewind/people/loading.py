"""Models from run folders: those that were saved here, and those that the command line trained."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from norewind.checkpoint import CheckpointError
from norewind.people.classifier import Classifier
from norewind.people.live import Live
from norewind.people.models import MODEL, AnomalyDetector, Forecaster, Model
from norewind.runs.folder import saved_run
from norewind.runs.settings import SettingsError


def load(folder: str | Path) -> Any:
    """The model in a run folder: what `save` wrote, or a `Forecaster` for a run of `norewind train` on rows."""
    folder = Path(folder)
    settings, saved = saved_run(folder)
    if settings.kind not in ("csv", "jsonl"):
        raise SettingsError(f"{folder} has learned from {settings.kind}: only runs on CSV or JSON lines can be loaded.")
    model = _empty(folder, _about(folder, settings.targets), settings.targets)
    model.live = Live(settings, saved)
    return model


def _about(folder: Path, targets: tuple[str, ...]) -> dict[str, Any]:
    try:
        about = json.loads((folder / MODEL).read_bytes())
    except FileNotFoundError:
        return {"model": "Forecaster", "one": targets[0] if len(targets) == 1 else None}
    except ValueError:
        raise CheckpointError(f"{folder / MODEL}: not JSON. Save the model again.") from None
    return about if isinstance(about, dict) else {}


def _empty(folder: Path, about: dict[str, Any], targets: tuple[str, ...]) -> Model:
    """The model without its run."""
    match about:
        case {"model": "Forecaster"}:
            return Forecaster(about.get("one") or targets)
        case {"model": "AnomalyDetector"}:
            return AnomalyDetector()
        case {"model": "Classifier", "label": str(label), "labels": list(labels), "counts": list(counts)}:
            model = Classifier(label, classes=len(targets))
            model.labels, model.counts, model.before = labels, Counter(dict(enumerate(counts))), about.get("before")
            return model
    raise CheckpointError(f"{folder / MODEL}: describes no model of norewind. Save the model again.")
