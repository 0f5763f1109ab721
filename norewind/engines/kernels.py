"""The second engine: plain loops on NumPy arrays, compiled by Numba.

JAX computes gradients; every recursion on tables and small matrices is a loop here.
A kernel is written as a textbook would write it: typed arrays that are changed in
place, no `fastmath` (so that results do not depend on the width of vectors), and the
same source for a chunk and for a single row, which is a chunk of one.

Numba stores compiled kernels in the user's cache folder (see `norewind.engines.cache`).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, config, event, types
from numba.extending import intrinsic

from norewind.engines.cache import numba_folder

_settings: Any = config  # its attributes are created when it is imported
if not _settings.CACHE_DIR and (_folder := numba_folder()):
    _settings.CACHE_DIR = str(_folder)


def kernel(function: Callable) -> Any:
    """Compile a loop with Numba, at its first call for each combination of argument types.

    The compiled loop releases the GIL when it is called from Python.

    Args:
        function: the loop, in the subset of Python that Numba supports.

    Returns:
        The compiled function.
    """
    compiled = numba.njit(function, nogil=True, error_model="numpy")
    if _settings.CACHE_DIR:
        with suppress(RuntimeError):  # Numba cannot find the source, as in a zip file
            compiled.enable_caching()
    return compiled


def _prefetch(_, array, row):
    """Ask the processor, inside a kernel, to fetch a row of a matrix into its cache. This is a hint: no result changes.

    Args:
        array: the matrix. Only the line of the cache in which its row begins is fetched.
        row: the number of the row.
    """

    def generate(context, builder, signature, arguments):
        matrix = context.make_array(array)(context, builder, arguments[0])
        start = ir.Constant(arguments[1].type, 0)
        address = cgutils.get_item_pointer(context, builder, array, matrix, [arguments[1], start])
        # LLVM's arguments: to read, to be kept in all levels of the cache, data.
        options = [ir.Constant(ir.IntType(32), option) for option in (0, 3, 1)]
        kind = ir.FunctionType(ir.VoidType(), [address.type, *(option.type for option in options)])
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind), [address, *options])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


prefetch: Any = intrinsic(_prefetch)


def announce_compilation(say: Callable[[str], None]) -> AbstractContextManager:
    """Call a function once with a message if any kernel has to be compiled in a block.

    Args:
        say: called with the message.

    Returns:
        The context manager of the block.
    """
    return event.install_listener("numba:compile", _Announcer(say))


class _Announcer(event.Listener):
    """A listener that announces once that kernels are being compiled."""

    def __init__(self, say: Callable[[str], None]):
        self._say, self._said = say, False

    def on_start(self, event: event.Event) -> None:
        if not self._said:
            self._said = True
            self._say("compiling kernels for this kind of data (first time only; cached for later runs)")

    def on_end(self, event: event.Event) -> None:
        pass
