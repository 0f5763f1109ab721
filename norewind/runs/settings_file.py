"""Settings as a TOML file."""

import json
import tomllib
from pathlib import Path

from norewind.runs.settings import Settings, SettingsError, field_kinds


def write_toml(settings: Settings) -> str:
    """Settings as TOML. JSON values are valid TOML, except for one character that must be escaped."""
    return "".join(
        f"{name} = {json.dumps(value, ensure_ascii=False)}\n".replace("\x7f", "\\u007f")
        for name, value in settings.as_json().items()
    )


def read_toml(path: Path) -> Settings:
    """Settings from a TOML file. What it does not set keeps its default."""
    try:
        # Some editors begin a file with a byte order mark.
        entries = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        # Besides bad syntax: numbers of thousands of digits, brackets nested thousands deep.
        raise SettingsError(f"{path}: not a TOML file that can be read: {error}.") from None
    unknown = next((name for name in entries if name not in field_kinds(Settings)), None)
    if unknown is not None:
        raise SettingsError(f"{path}: there is no setting {unknown!r}: choose from {', '.join(field_kinds(Settings))}.")
    try:
        return Settings(**entries)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
