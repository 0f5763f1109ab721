"""Methods by name: "uoro", "bptt:16", "uoro:memory=4,rank=8", as the command line and the comparisons write them."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import optax

from norewind import estimators
from norewind.combinators import average, window
from norewind.estimator import Estimator, Loss, Transition
from norewind.trees import Tree

METHODS: dict[str, Callable[..., Estimator]] = {name: getattr(estimators, name) for name in estimators.__all__}
"""Every estimator by the name that it has in `norewind`."""


class Method(NamedTuple):
    """A method as written, the steps in one of its windows, and how to build it.

    `make(transition, loss, x)` takes the model of single steps and an example of an
    input, and returns an estimator that takes windows of `memory` steps if that is
    above one.
    """

    name: str
    memory: int
    make: Callable[[Transition, Loss, Tree], Estimator]


def parse_method(text: str) -> Method:
    """A method from its name, with options after a colon.

    `name:16` sets the window (the `length` of sliding_bptt); `name:option=value,...` sets
    `memory` (the window), `rank` (how many carries to average), and whatever keywords the
    method has; for dni, `rate` is that of its predictor's Adam.

    >>> parse_method("bptt:16").memory
    16
    >>> parse_method("uoro:memory=4,rank=8").name
    'uoro:memory=4,rank=8'
    >>> parse_method("bptt:memory=2.5")
    Traceback (most recent call last):
    ValueError: bptt:memory=2.5: memory must be a whole number from 1, not 2.5.
    """
    name, _, rest = text.strip().partition(":")
    if name not in METHODS:
        raise ValueError(f"no method is called {name!r}: choose from {', '.join(METHODS)}.")
    options = _options(name, rest)
    memory, rank = options.pop("memory", 1), options.pop("rank", 1)
    for what, number in (("memory", memory), ("rank", rank)):
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{text}: {what} must be a whole number from 1, not {number!r}.")
    if name == "sliding_bptt" and "length" not in options:
        raise ValueError("sliding_bptt needs its length, e.g. sliding_bptt:16.")
    if "rate" in options:
        options["optimizer"] = optax.adam(options.pop("rate"))

    def make(transition, loss, x):
        model = window(transition, loss) if memory > 1 else (transition, loss)
        example = {"x": x} if name == "sliding_bptt" else {}
        estimator = METHODS[name](*model, **options, **example)
        return average(estimator, rank) if rank > 1 else estimator

    return Method(text.strip(), memory, make)


def parse_methods(text: str) -> list[Method]:
    """Several methods, separated by commas; a comma before `option=` belongs to the method before it.

    >>> [method.name for method in parse_methods("uoro:memory=4,rank=8,rtrl,bptt:16")]
    ['uoro:memory=4,rank=8', 'rtrl', 'bptt:16']
    """
    specs: list[str] = []
    for part in text.split(","):
        is_option = "=" in part and ":" not in part and bool(specs)
        if is_option:
            specs[-1] += "," + part.strip()
        elif part.strip():
            specs.append(part.strip())
    if not specs:
        raise ValueError("name at least one method, e.g. uoro.")
    return [parse_method(spec) for spec in specs]


def _options(name: str, text: str) -> dict[str, Any]:
    keywords = list(inspect.signature(METHODS[name]).parameters.values())
    own = {
        keyword.name
        for keyword in keywords
        if keyword.kind is keyword.KEYWORD_ONLY and keyword.name not in ("noise", "x", "predictor", "optimizer")
    }
    words = {keyword.name for keyword in keywords if isinstance(keyword.default, str)}
    allowed = sorted(own | {"memory", "rank"} | ({"rate"} if name == "dni" else set()))
    options: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        option, equals, value = part.partition("=")
        if not equals and part in allowed:
            raise ValueError(f"{name}: the option {part} needs a value, as in {name}:{part}=8.")
        if not equals:
            option, value = ("length" if name == "sliding_bptt" else "memory"), part
        if option not in allowed:
            raise ValueError(f"{name} has no option {option!r}: it has {', '.join(allowed)}.")
        options[option] = _value(value)
        if isinstance(options[option], str) and option not in words | {"memory", "rank"}:
            raise ValueError(f"{name}: {option} must be a number, not {value!r}.")
    return options


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
