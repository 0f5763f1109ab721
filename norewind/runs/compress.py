"""A file coded with a learner's own predictions, which proves its loss in bits."""

import hashlib
import json
import platform
from collections.abc import Callable
from math import isfinite
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

import norewind
from norewind.combinators import one_step_of
from norewind.compilation import compiled_loop
from norewind.learners.counting import coding, symbol, tree
from norewind.learners.text import TextLearner
from norewind.machine import processor
from norewind.runs import auto

MAGIC = b"norewind compressed\n"
SYMBOLS = 256
# A bit costs at most sixteen bits of code, and a byte of code is read or written whenever one is settled.
BYTES_PER_SYMBOL = 16


class _Header(msgspec.Struct):
    """What a compressed file says about itself, besides where it was made."""

    budget: Annotated[float, msgspec.Meta(gt=0)]
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    first: Annotated[int, msgspec.Meta(ge=0, lt=SYMBOLS)] | None
    sha256: str


class CodeError(ValueError):
    """A file that cannot be decompressed here: what is wrong, and what to do."""


def compressed(content: bytes, *, budget: float = 50, report: Callable[[int], None] = lambda done: None) -> bytes:
    """The content, coded with the predictions of `auto`. Only the same versions on the same processor can read it."""
    if not (isfinite(budget) and budget > 0):
        raise CodeError(f"the budget must be a number of microseconds above 0, but it is {budget}.")
    header = {
        **_machine(),
        "budget": budget,
        "bytes": len(content),
        "first": content[0] if content else None,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    code = bytearray()
    symbols = np.frombuffer(content, np.uint8).astype(np.int32)
    if len(symbols):
        windows = _Windows(budget)
        for start in range(1, len(symbols), windows.length):
            code += windows.encode(int(symbols[start - 1]), symbols[start : start + windows.length])
            report(start)
        code += windows.rest()
    return MAGIC + json.dumps(header).encode() + b"\n" + bytes(code)


def decompressed(data: bytes, *, report: Callable[[int], None] = lambda done: None) -> bytes:
    """The content of a compressed file, or a `CodeError`; never wrong content."""
    header, code = _header(data)
    content = bytearray() if header["first"] is None else bytearray([header["first"]])
    if content:
        windows = _Windows(header["budget"])
        windows.load(code)
        while len(content) < header["bytes"]:
            count = min(windows.length, header["bytes"] - len(content))
            content += windows.decode(content[-1], count).astype(np.uint8).tobytes()
            report(len(content))
    if hashlib.sha256(content).hexdigest() != header["sha256"]:
        raise CodeError("the file does not decompress to what was compressed: it is damaged.")
    return bytes(content)


def code_of(data: bytes) -> bytes:
    """A compressed file without its header."""
    return data[len(MAGIC) :].partition(b"\n")[2]


def _header(data: bytes) -> tuple[dict[str, Any], bytes]:
    if not data.startswith(MAGIC):
        raise CodeError("this file was not written by norewind compress.")
    line = data[len(MAGIC) :].partition(b"\n")[0]
    header: dict[str, Any] = {}
    try:
        header = json.loads(line)
        known = msgspec.convert(header, _Header)
        fits = header.keys() == {*_machine(), *_Header.__struct_fields__} and (known.first is None) == (
            known.bytes == 0
        )
    except (ValueError, AttributeError, RecursionError):
        fits = False
    if not fits:
        raise CodeError("the header of this file is damaged.")
    for name, here in _machine().items():
        if header[name] != here:
            raise CodeError(
                f"this file was compressed with {name} {header[name]}, and this is {here}. The last bit of every "
                "number must agree: decompress it where it was made."
            )
    return header, code_of(data)


def _machine() -> dict[str, str]:
    """Everything that may change the last bit of a prediction."""
    return {
        "norewind": norewind.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "processor": processor(),
    }


class _Windows:
    """The learner and its run, window by window, with the coder: one compiled program writes and reads."""

    def __init__(self, budget: float):
        self.learner, run = auto.text(SYMBOLS, budget, 0)
        self.networks, self.counts = list(run.networks), run.counts
        self.length, self.coder, self.code = self.learner.window, coding.fresh(), b""
        self.program = compiled_loop(_program(self.learner), donate_argnums=0)

    def load(self, code: bytes) -> None:
        value, self.code = int.from_bytes(code[:4].ljust(4, b"\0"), "big"), code[4:]
        self.coder = self.coder._replace(value=jnp.uint32(value))

    def encode(self, previous: int, symbols: np.ndarray) -> bytes:
        full = np.zeros(self.length, np.int32)
        full[: len(symbols)] = symbols
        self._step(previous, full, len(symbols), decoding=False)
        return np.asarray(self.coder.data)[: int(self.coder.place)].tobytes()

    def decode(self, previous: int, count: int) -> np.ndarray:
        symbols = self._step(previous, np.zeros(self.length, np.int32), count, decoding=True)
        if int(self.coder.place) > len(self.code):
            # As many bytes are read as were written. A forged header may ask for any number of symbols.
            raise CodeError("the code of this file ends too early: it is damaged.")
        self.code = self.code[int(self.coder.place) :]
        return symbols[:count]

    def rest(self) -> bytes:
        """The code of the interval that is left."""
        return int(self.coder.high).to_bytes(4, "big")

    def _step(self, previous: int, symbols: np.ndarray, count: int, decoding: bool) -> np.ndarray:
        size = self.length * BYTES_PER_SYMBOL
        data = np.frombuffer(self.code[:size].ljust(size, b"\0"), np.uint8)
        coder = self.coder._replace(data=jnp.asarray(data), place=jnp.int32(0))
        models = [(network.params, network.state) for network in self.networks]
        self.counts, self.coder, coded = self.program(self.counts, coder, models, previous, symbols, count, decoding)
        coded = np.asarray(coded)
        if count == self.length:
            xs, targets = np.concatenate([[previous], coded[:-1]])[None].astype(np.int32), coded[None]
            for number, learner in enumerate(self.learner.networks):
                self.networks[number], _ = learner.scan(self.networks[number], xs, targets)
        return coded


def _program(learner: TextLearner) -> Callable:
    """A function that codes the symbols of one window, or decodes them."""
    plan = learner.counts.plan
    transitions = [one_step_of(network.update.estimator.model.transition) for network in learner.networks]

    def window(counts, coder, models, previous, symbols, count, decoding):
        def one(i, loop):
            counts, coder, states, previous, symbols = loop
            pairs = [
                transition(params, state, previous)
                for transition, (params, _), state in zip(transitions, models, states, strict=True)
            ]
            opinions = [jax.nn.log_softmax(logits) for _, logits in pairs]
            members = jnp.stack(opinions) if opinions else jnp.zeros((0, SYMBOLS))
            logits = jnp.concatenate(tree.level_logits(members, plan.depth), -1)
            counts, moment = symbol.moved(plan, counts, previous)

            def choose(level, node, one, coder):
                bit = (symbols[i] >> (plan.depth - level - 1)) & 1
                return coding.coded(coder, one, bit, decoding)

            counts, new, coder = symbol.walked(
                plan, counts, moment, lambda level, node: logits[:, node - 1], choose, coder
            )
            return counts, coder, [state for state, _ in pairs], new, symbols.at[i].set(new)

        start = counts, coder, [state for _, state in models], jnp.asarray(previous, jnp.int32), jnp.asarray(symbols)
        counts, coder, _, _, symbols = jax.lax.fori_loop(0, count, one, start)
        return counts, coder, symbols

    return window
