"""The names of methods, cells, tasks and optimizers.

Importing this module does not import JAX.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from norewind.cells import Cell
    from norewind.core.estimator import Estimator, Loss, Transition
    from norewind.core.trees import Tree
    from norewind.tasks import Text

TaskName = Literal["anbn", "brackets"]
# `plain_lstm` is the LSTM without embedding, where every weight feeds one unit.
CellName = Literal[
    "alif", "deltanet", "diagonal_gru", "elman", "elstm", "gru", "lru", "lstm", "mingru", "plain_lstm", "rnn", "rtu",
    "selective_ssm", "slstm", "feedback_reservoir", "liquid", "reservoir",
]  # fmt: skip
# The methods that complete another one, which is named by the option `of`.
COMPLETERS = ("shrunk", "unbiased")
OptimizerName = Literal["adam", "adagrad", "rmsprop", "sgd", "obgd", "intentional", "idbd"]

# The method that mixes several learners; it is not an estimator. For symbols, its steps are windows of AUTO_WINDOW.
AUTO = "auto"
AUTO_WINDOW = 16

TASKS: tuple[TaskName, ...] = get_args(TaskName)
CELLS: tuple[CellName, ...] = get_args(CellName)
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)


def task(name: str, parameters: Sequence[int] = ()) -> "Text":
    """Return the task with a name.

    Args:
        name: the name of the task.
        parameters: its parameters, by default the paper's.

    Raises:
        ValueError: there is no such task.
    """
    from norewind import tasks

    make = {"anbn": tasks.anbn, "brackets": tasks.distant_brackets}[_known("task", name, TASKS)]
    return make(*parameters)


def cell(name: str) -> Callable[..., "Cell"]:
    """Return the function `(inputs, hidden, outputs, *, symbols)` that makes the cell with a name.

    Raises:
        ValueError: there is no such cell.
    """
    from norewind import cells

    if _known("cell", name, CELLS) == "plain_lstm":
        return partial(cells.lstm, embedding=False)
    return getattr(cells, name)


def optimizer(name: str) -> Callable[..., Any]:
    """Return the function of a schedule that makes the optimizer with a name.

    `obgd` and `intentional` ignore the schedule, and `idbd` starts at its first rate.

    Raises:
        ValueError: there is no such optimizer.
    """
    import optax

    from norewind.core import optimizers, step_sizes

    own = {
        "adam": optimizers.adam,
        "obgd": lambda schedule: step_sizes.obgd(),
        "intentional": lambda schedule: step_sizes.intentional(),
        "idbd": lambda schedule: step_sizes.idbd(schedule(0)),
    }
    return own.get(_known("optimizer", name, OPTIMIZERS)) or getattr(optax, name)


def methods() -> dict[str, Callable[..., "Estimator"]]:
    """Return every estimator by its name in `norewind`."""
    from norewind import estimators

    return {name: getattr(estimators, name) for name in estimators.__all__}


class Method(NamedTuple):
    """A method that was parsed from text.

    Attributes:
        name: the method as written.
        window: the number of samples in one of its windows.
        make: the function `(transition, loss, x)` that builds the estimator from the model of single samples and an
            example of an input. If `window` is above one, the estimator takes that many samples at a time.
    """

    name: str
    window: int
    make: Callable[["Transition", "Loss", "Tree"], "Estimator"]


def parse_method(text: str) -> Method:
    """Parse a method: its name, with options after a colon.

    `name:16` sets the window (the `length` of sliding_bptt). `name:option=value,...` sets
    `window`, `rank` (the number of carries to average) and any keyword of the method. For
    dni, `rate` is the learning rate of its predictor's Adam. `unbiased` and `shrunk` complete the
    method named by `of`, whose keywords follow as well: `unbiased:of=sketched,terms=4`.

    Args:
        text: the method, such as `uoro:window=4,rank=8`.

    Raises:
        ValueError: there is no such method or option.

    >>> parse_method("bptt:16").window
    16
    >>> parse_method("uoro:window=4,rank=8").name
    'uoro:window=4,rank=8'
    >>> parse_method("bptt:window=2.5")
    Traceback (most recent call last):
    ValueError: bptt:window=2.5: window must be a whole number from 1, not 2.5.
    """
    import optax

    from norewind.core import combinators

    name, _, rest = text.strip().partition(":")
    estimator = methods()[_known("method", name, methods())]
    inner = _completed(name, rest)
    options = _options(name, (estimator, inner) if inner else (estimator,), rest)
    window, rank = options.pop("window", 1), options.pop("rank", 1)
    for what, number in (("window", window), ("rank", rank)):
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{text}: {what} must be a whole number from 1, not {number!r}.")
    if name == "sliding_bptt" and "length" not in options:
        raise ValueError("sliding_bptt needs its length, e.g. sliding_bptt:16.")
    if "rate" in options:
        options["optimizer"] = optax.adam(options.pop("rate"))

    def make(transition, loss, x):
        model = combinators.window(transition, loss) if window > 1 else (transition, loss)
        example = {"x": x} if name == "sliding_bptt" else {}
        if inner:
            own = {key: options[key] for key in _keywords(estimator) & set(options)}
            single = estimator(inner(*model, **{k: v for k, v in options.items() if k not in {*own, "of"}}), **own)
        else:
            single = estimator(*model, **options, **example)
        return combinators.average(single, rank) if rank > 1 else single

    return Method(text.strip(), window, make)


def split_methods(text: str) -> list[str]:
    """Split several methods separated by commas; a comma before `option=` belongs to the preceding method.

    Args:
        text: the methods.

    Raises:
        ValueError: no method is named.

    >>> split_methods("uoro:window=4,rank=8,rtrl,bptt:16")
    ['uoro:window=4,rank=8', 'rtrl', 'bptt:16']
    """
    specs = [spec for spec in re.split(r",(?![^:,]*=)", text.replace(" ", "")) if spec]
    if not specs:
        raise ValueError("name at least one method, e.g. uoro.")
    return specs


def _known(what: str, name: str, known: Sequence[str] | dict[str, Any]) -> str:
    if name not in known:
        raise ValueError(f"no {what} is called {name!r}: choose from {', '.join(known)}.")
    return name


def _completed(name: str, text: str) -> "Callable[..., Estimator] | None":
    """Return the method that a method such as `unbiased` completes, from its options; None for other methods."""
    if name not in COMPLETERS:
        return None
    chosen = re.search(r"(?:^|,)\s*of=([^,]*)", text)
    if chosen is None:
        raise ValueError(f"{name} needs the method that it completes, as in {name}:of=snap1.")
    completable = {key: method for key, method in methods().items() if key not in COMPLETERS}
    return completable[_known("method", chosen[1].strip(), completable)]


def _keywords(estimator: Callable) -> set[str]:
    keywords = inspect.signature(estimator).parameters.values()
    return {keyword.name for keyword in keywords if keyword.kind is keyword.KEYWORD_ONLY}


def _options(name: str, estimators: Sequence[Callable], text: str) -> dict[str, Any]:
    own = set().union(*map(_keywords, estimators))
    keywords = [keyword for estimator in estimators for keyword in inspect.signature(estimator).parameters.values()]
    words = {keyword.name for keyword in keywords if isinstance(keyword.default, str)} | {"of"}
    more = {"window", "rank"} | ({"rate"} if name == "dni" else set()) | ({"of"} if name in COMPLETERS else set())
    allowed = sorted(own - {"noise", "x", "predictor", "optimizer"} | more)
    options: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        option, equals, value = part.partition("=")
        if not equals and part in allowed:
            raise ValueError(f"{name}: the option {part} needs a value, as in {name}:{part}=8.")
        if not equals:
            option, value = ("length" if name == "sliding_bptt" else "window"), part
        if option not in allowed:
            raise ValueError(f"{name} has no option {option!r}: it has {', '.join(allowed)}.")
        options[option] = _value(value)
        if isinstance(options[option], str) and option not in words | {"window", "rank"}:
            raise ValueError(f"{name}: {option} must be a number, not {value!r}.")
    return options


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
