"""The settings of forecasting models: those of `norewind train`, as Python passes them."""

from collections.abc import Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from norewind.streams.table.formats import DICT_FORMAT
from norewind.training.settings import Settings, SettingsError, check_scopes

# The name of a column, or several names.
Names = str | Sequence[str]


def settings_of(wrapper: Any) -> dict[str, Any]:
    """Return the settings of the model inside an object for another library (River, scikit-learn, sktime).

    Args:
        wrapper: the object, with `method`, `budget`, `seed` and `settings` as attributes.
    """
    budget = {"budget": wrapper.budget} if wrapper.method == "auto" else {}
    return {"method": wrapper.method, "seed": wrapper.seed, **budget, **(wrapper.settings or {})}


def settings_for_rows(settings: dict[str, Any], **given: Any) -> Settings:
    """Return the settings of a run on rows from Python, which are treated like JSON lines from a pipe.

    Args:
        settings: settings of `norewind train` that the user passed.
        given: settings that the model determines.

    Raises:
        SettingsError: there is no setting of that name, or there is a key.
    """
    known = [field.name for field in fields(Settings)]
    for name in settings.keys() - known:
        close = get_close_matches(name, known, 1)
        meant = f" Did you mean {close[0]}?" if close else ""
        raise SettingsError(f"there is no setting {name}.{meant} Settings are those of norewind train, with _ for -.")
    described = Settings(**{"source": "-", "format": DICT_FORMAT, **settings, **given})
    check_is_one_series(described)
    # `fit` may read a CSV file.
    check_scopes(described, settings.keys() - {"header", "delimiter"})
    return described


def check_is_one_series(settings: Settings) -> None:
    """Reject settings of a model for every key.

    Raises:
        SettingsError: the settings name a key.
    """
    if settings.key is not None:
        remedy = "make one model per key, or train all keys with the command line: norewind train --key"
        raise SettingsError(f"a Python model learns one series, but key is {settings.key!r}: {remedy} {settings.key}.")


def names_of(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
