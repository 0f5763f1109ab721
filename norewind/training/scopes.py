"""Which settings apply to which runs: the one table that checks runs, and from which help and docs are generated.

Importing this module does not import JAX.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from norewind.streams.kafka.client import SCHEME
from norewind.training.registry import AUTO

Class = TypeVar("Class", bound=type)

# A table whose file has an unknown suffix is also read as bytes.
COLUMNS = (
    'Only rows have columns: for a table, set format="csv" or format="jsonl"; '
    "if it is compressed otherwise than as .csv.gz, unpack it: bzcat FILE.bz2 | norewind train - --format csv."
)
NETWORK = 'auto chooses its own networks: set budget=, or choose a method, such as method="uoro:window=16".'
KEYS = "Name the column of the keys (key=)."


class Scope(NamedTuple):
    """The runs that a setting has an effect on.

    Attributes:
        words: these runs, in a few words.
        includes: returns whether the run with these settings is one of them.
        remedy: what to do if it is not, as a sentence.
    """

    words: str
    includes: Callable[[Any], bool]
    remedy: str = "Leave it out."


NOT_TASKS = Scope("files, pipes, kafka", lambda run: run.kind != "task")
LINES = Scope("text, rows", lambda run: run.kind == "text" or run.has_rows)
TEXT = Scope("text", lambda run: run.kind == "text")
GROWING_ALPHABET = Scope("text without an alphabet", lambda run: run.kind == "text" and run.alphabet is None)
SYMBOLS = Scope("bytes, text, tasks", lambda run: not run.has_rows)
PER_LINE = Scope("bytes, text, tasks, per line", lambda run: not run.has_rows and run.per == "line", 'Set per="line".')
ROWS = Scope("rows", lambda run: run.has_rows, COLUMNS)
SEASONAL = Scope(
    "rows of numbers without keys, or with auto",
    lambda run: NUMBERS.includes(run) and (run.key is None or _is_auto_of_keys(run)),
)
AHEAD = Scope(
    "auto on rows of numbers without keys, ahead",
    lambda run: NUMBERS.includes(run) and run.key is None and run.method == AUTO and run.horizon > 0,
)
RANDOM = Scope("all but auto with keys, which draws no random numbers", lambda run: not _is_auto_of_keys(run))
INTERVALS = Scope(
    "rows of numbers, standardised",
    lambda run: run.has_rows and run.loss != "classes" and run.standardise,
    "Classes have probabilities; for numbers, leave out standardise=.",
)
NUMBERS = Scope("rows of numbers", lambda run: run.has_rows and run.loss != "classes")
CSV = Scope("csv", lambda run: run.kind == "csv")
TOPICS = Scope("kafka", lambda run: run.source.startswith(SCHEME))
TASKS = Scope("anbn, brackets", lambda run: run.kind == "task")
KEYED = Scope("rows with keys", lambda run: run.has_rows and run.key is not None, KEYS)
SHARDED = Scope("rows with keys, in shards", lambda run: run.has_rows and run.key is not None and run.shards > 1)
NETWORKS = Scope("methods other than auto", lambda run: run.method != AUTO, NETWORK)
RATES = Scope(
    "methods other than auto, with an optimizer other than obgd and intentional",
    lambda run: run.method != AUTO and run.optimizer not in ("obgd", "intentional"),
    "Leave it out, or choose a method (method=) and an optimizer (optimizer=) that use it.",
)
SCHEDULES = Scope(
    "methods other than auto, with an optimizer other than obgd, intentional and idbd",
    lambda run: RATES.includes(run) and run.optimizer != "idbd",
    RATES.remedy,
)
AUTO_BUDGET = Scope("auto without keys", lambda run: run.method == AUTO and run.key is None)

# Settings that are not listed apply to every run.
SCOPES: dict[str, Scope] = {
    **dict.fromkeys(("format", "flush"), NOT_TASKS),
    **dict.fromkeys(("bad", "final"), LINES),
    "alphabet": TEXT,
    "alphabet_size": GROWING_ALPHABET,
    "seed": RANDOM,
    "per": SYMBOLS,
    "top": PER_LINE,
    **dict.fromkeys(("inputs", "targets", "copy", "only_steps", "horizon", "loss", "missing", "standardise"), ROWS),
    "period": SEASONAL,
    **dict.fromkeys(("known_future", "holidays"), AHEAD),
    **dict.fromkeys(("header", "delimiter"), CSV),
    **dict.fromkeys(("brokers", "group", "client"), TOPICS),
    "interval": INTERVALS,
    "non_negative": NUMBERS,
    "parameters": TASKS,
    "key": ROWS,
    **dict.fromkeys(("share", "resident", "shards"), KEYED),
    "shard": SHARDED,
    **dict.fromkeys(("cell", "hidden", "layers", "optimizer", "clip", "precision"), NETWORKS),
    "rate": RATES,
    "alpha": SCHEDULES,
    "budget": AUTO_BUDGET,
}
# Settings that commands which train no run folder ignore.
IGNORED_BY: dict[str, tuple[str, ...]] = {
    "compare": ("top", "copy", "shards", "shard", "predictions", "tensorboard"),
    "diagnose": ("per", "top", "copy", "period", "interval", "non_negative"),
}


def _is_auto_of_keys(run: Any) -> bool:
    return run.has_rows and run.key is not None and run.method == AUTO and not run.share


def without_effect(settings: Any) -> list[str]:
    """Return the names of the settings that have no effect on the run that they describe, but differ from the default.

    Args:
        settings: the settings of a run.

    >>> from norewind.training import Settings
    >>> without_effect(Settings("table.csv", per="line", delimiter=";", parameters=(1, 2)))
    ['per', 'parameters']
    """
    defaults = type(settings)()
    changed = [name for name in SCOPES if getattr(settings, name, None) != getattr(defaults, name, None)]
    return [name for name in changed if not SCOPES[name].includes(settings)]


def no_effect(settings: Any, name: str) -> str:
    """Return the message about a setting that has no effect.

    Args:
        settings: the settings of a run.
        name: the name of the setting.
    """
    scope = SCOPES[name]
    value = getattr(settings, name)
    keys = f" for every {settings.key}" if settings.key is not None else ""
    optimizer = f" and {settings.optimizer}" if scope in (RATES, SCHEDULES) else ""
    run = f"{settings.source} is read as {settings.kind} with method {settings.method}{optimizer}{keys}"
    return f"{name} is {value!r}, but it applies only to {scope.words}, and {run}. {scope.remedy}"


def ignored_by(command: str, settings: Any) -> str | None:
    """Return the message about the first setting that a command ignores, although it was set; None if there is none.

    Args:
        command: the name of the command.
        settings: the settings that were passed to it.
    """
    defaults = type(settings)()
    name = next((name for name in IGNORED_BY[command] if getattr(settings, name) != getattr(defaults, name)), None)
    return name and f"{name} is {getattr(settings, name)!r}, but norewind {command} does not use it. Leave it out."


def with_scopes(settings: Class) -> Class:
    """Decorate a class of settings: the description of each setting begins with its scope and what ignores it.

    Args:
        settings: the class.
    """

    def described(match: re.Match) -> str:
        words = [SCOPES[match[2]].words] if match[2] in SCOPES else []
        ignoring = [command for command, names in IGNORED_BY.items() if match[2] in names]
        words += [f"not {' or '.join(ignoring)}"] if ignoring else []
        return f"{match[1]}{match[2]}: {', '.join(words)}: " if words else match[0]

    settings.__doc__ = re.sub(r"^( {8})(\w+): ", described, settings.__doc__ or "", flags=re.MULTILINE)
    return settings


def table(names: Iterable[str]) -> str:
    """Return the table of the documentation: which settings apply to what.

    Args:
        names: the names of all settings.
    """
    by_scope: dict[str, list[str]] = {}
    for name in names:
        by_scope.setdefault(SCOPES[name].words if name in SCOPES else "every run", []).append(name)
    lines = ["| applies to | settings |", "|---|---|"]
    for words, settings in by_scope.items():
        lines.append(f"| {words} | {', '.join(f'`{name}`' for name in settings)} |")
    for command, ignored in IGNORED_BY.items():
        lines.append(f"| every command but `{command}` | {', '.join(f'`{name}`' for name in ignored)} |")
    return "\n".join(lines) + "\n"
