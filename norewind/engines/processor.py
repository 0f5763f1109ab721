"""The processor, and the memory of this process. Importing this module does not import JAX."""

import ctypes
import hashlib
import platform
import sys
from pathlib import Path


def give_back_free_memory() -> None:
    """Return free memory to the operating system, if the C library can do that (the GNU one)."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def processor() -> str:
    """Return the architecture and a checksum of the processor, since code compiled for one may not run on another."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    features = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return f"{platform.machine()} {hashlib.sha256(''.join(sorted(features)).encode()).hexdigest()[:16]}"
