"""What kind of processor this is. Importing this does not import JAX."""

import hashlib
import platform
from pathlib import Path


def processor() -> str:
    """The architecture, and a checksum of model and features: a program compiled for one may not suit another."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    chosen = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return f"{platform.machine()} {hashlib.sha256(''.join(sorted(chosen)).encode()).hexdigest()[:16]}"
