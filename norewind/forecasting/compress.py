"""Compression of a file with a learner's own predictions, which proves its loss in bits."""

import hashlib
import json
import platform
from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from typing import Annotated

import msgspec
import numpy as np

import norewind
from norewind.engines.processor import processor
from norewind.errors import NorewindError
from norewind.learners.counting import coding
from norewind.learners.counting.counts import Counts
from norewind.storage.decoded import as_kind
from norewind.training.registry import AUTO_WINDOW

MAGIC = b"norewind compressed\n"
# The version of the format. It must change whenever any prediction of `Counts` changes.
FILE_FORMAT = 5
SYMBOLS, MEGABYTES = 256, 128
# The number of symbols coded in one call, without the network.
CHUNK_BYTES = 4_000
# An upper bound of a symbol's code: a bit determines at most four bytes.
BYTES_PER_SYMBOL = 32


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    """The header of a compressed file. With a network, it includes the versions, the processor and the budget."""

    format: int
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    first: Annotated[int, msgspec.Meta(ge=0, lt=SYMBOLS)] | None
    sha256: str
    network: dict[str, str] | None = None
    budget: Annotated[float, msgspec.Meta(gt=0)] | None = None


class CodeError(NorewindError, ValueError):
    """A file cannot be decompressed here; the message says what is wrong and what to do."""


def compress(
    content: bytes, *, network: bool = False, budget: float = 50, report: Callable[[int], None] = lambda done: None
) -> bytes:
    """Compress bytes with the predictions of `Counts`, which are the same on every processor.

    Args:
        content: the bytes to compress.
        network: whether to mix in the predictions of a network, as in `auto`. Only the same versions on the same
            processor can then decompress the result.
        budget: the time that one byte may take with a network, in microseconds on one core, as in `train`.
        report: called with the number of bytes that are done.

    Returns:
        The compressed file.

    Raises:
        CodeError: the budget is not a number above 0.
    """
    if not (isfinite(budget) and budget > 0):
        raise CodeError(f"the budget must be a number of microseconds above 0, but it is {budget}.")
    header = {
        "format": FILE_FORMAT,
        "bytes": len(content),
        "first": content[0] if content else None,
        "sha256": hashlib.sha256(content).hexdigest(),
        **({"network": _machine(), "budget": budget} if network else {}),
    }
    code = bytearray()
    symbols = np.frombuffer(content, np.uint8).astype(np.int32)
    if len(symbols):
        coder = _Coder(coding.ENCODE, budget if network else None)
        for start in range(0, len(symbols) - 1, coder.length):
            coder.state[coding.PLACE], coder.data = 0, np.zeros(coder.length * BYTES_PER_SYMBOL, np.uint8)
            coder.code(symbols[start : start + coder.length + 1])
            code += coder.data[: coder.state[coding.PLACE]].tobytes()
            report(start)
        code += int(coder.state[coding.HIGH]).to_bytes(4, "big")
    return MAGIC + json.dumps(header).encode() + b"\n" + bytes(code)


def decompress(data: bytes, *, report: Callable[[int], None] = lambda done: None) -> bytes:
    """Return the content of a compressed file.

    Args:
        data: the compressed file.
        report: called with the number of bytes that are done.

    Returns:
        The content, which has been verified by its checksum.

    Raises:
        CodeError: the file is damaged, or was made with a network elsewhere.
    """
    header, code = _header(data)
    content = bytearray() if header.first is None else bytearray([header.first])
    if content:
        coder = _Coder(coding.DECODE, header.budget)
        coder.state[coding.VALUE] = int.from_bytes(code[:4].ljust(4, b"\0"), "big")
        coder.data = np.array(bytearray(code[4:]), np.uint8)
        while len(content) < header.bytes:
            piece = np.zeros(1 + min(coder.length, header.bytes - len(content)), np.int32)
            piece[0] = content[-1]
            coder.code(piece)
            if coder.state[coding.PLACE] > len(coder.data):
                # Exactly as many bytes are read as were written. A forged header may ask for any number of symbols.
                raise CodeError("the code of this file ends too early: it is damaged.")
            content += piece[1:].astype(np.uint8).tobytes()
            report(len(content))
        # Everything must have been read, and the last bytes must be those that end a code.
        if coder.state[coding.PLACE] != len(coder.data) or coder.state[coding.VALUE] != coder.state[coding.HIGH]:
            raise CodeError("the code of this file does not end as it should: it is damaged.")
    if hashlib.sha256(content).hexdigest() != header.sha256:
        raise CodeError("the file does not decompress to its original content: it is damaged.")
    return bytes(content)


def code_of(data: bytes) -> bytes:
    """Return a compressed file without its header."""
    return data[len(MAGIC) :].partition(b"\n")[2]


def _header(data: bytes) -> tuple[_Header, bytes]:
    if not data.startswith(MAGIC):
        raise CodeError("this file was not written by norewind compress.")
    line = data[len(MAGIC) :].partition(b"\n")[0]
    found = None
    with suppress(ValueError, RecursionError):
        found = json.loads(line)
    if isinstance(found, dict) and found.get("format") != FILE_FORMAT:
        raise CodeError(
            f"this file has format {found.get('format', 0)!r} of compressed files, but this version of norewind reads "
            f"format {FILE_FORMAT}. Decompress it with the version that wrote it."
        )
    header = None
    with suppress(msgspec.ValidationError):
        header = as_kind(found, _Header)
    if (
        not header
        or (header.first is None) != (header.bytes == 0)
        or (header.network is None) != (header.budget is None)
    ):
        raise CodeError("the header of this file is damaged.")
    here = _machine()
    for name, there in (header.network or {}).items():
        if there != here.get(name):
            raise CodeError(
                f"this file was compressed with a network and {name} {there}, but this is {here.get(name)}. Every bit "
                "of the predictions must agree: decompress it where it was made."
            )
    return header, code_of(data)


def _machine() -> dict[str, str]:
    """Return everything that may change the last bit of a network's prediction."""
    import jax

    return {
        "norewind": norewind.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "processor": processor(),
    }


class _Coder:
    """Counts that write or read a code (see `coding`), and, if there is a budget, a network that predicts with them."""

    def __init__(self, mode: int, budget: float | None):
        self.state, self.data = coding.init_coder(mode), np.zeros(0, np.uint8)
        self.network, self.length = None, CHUNK_BYTES
        if budget is None:
            self.counts = Counts(SYMBOLS, megabytes=MEGABYTES)
            self.run = self.counts.init()
            return
        from norewind.learners.packing import PackedLearner
        from norewind.training import auto

        learner, run = auto.text(SYMBOLS, budget, 0)
        self.counts = learner.counts
        self.run = run.counts
        self.length = AUTO_WINDOW
        if learner.networks:
            self.network, self.network_run = learner.networks[0], run.networks[0]
            self.single, self.log_probabilities = PackedLearner(self.network), learner.log_probabilities

    def code(self, symbols: np.ndarray) -> None:
        """Code all symbols but the first, which is known. When decoding, they are written into the array."""
        if self.network is None:
            self._code(symbols, None)
            return
        # Only what predictions need, since packing takes time.
        state = self.single.pack(self.network_run._replace(carry=(), opt_state=(), initial_state=()))
        for i in range(len(symbols) - 1):
            state, logits = self.single.forward(state, symbols[i : i + 1])
            self._code(symbols[i : i + 2], self.log_probabilities([np.asarray(logits)], 1))
        if len(symbols) == self.length + 1:
            self.network_run, _, _ = self.network.scan(self.network_run, symbols[None, :-1], symbols[None, 1:])

    def _code(self, symbols: np.ndarray, experts: np.ndarray | None) -> None:
        losses, made = np.zeros(len(symbols) - 1), np.zeros((0, SYMBOLS), np.float32)
        # Each target is the next input, so the next symbol is predicted from the one just decoded.
        self.run = self.counts.code(
            self.run,
            symbols[:-1],
            symbols[1:],
            losses,
            made,
            expert_log_probabilities=experts,
            coder=self.state,
            data=self.data,
        )
