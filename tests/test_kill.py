"""Real processes, killed at random moments: nothing is lost, nothing is doubled, and the end is the same."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from norewind.checkpoint import checkpoints, read
from norewind.training.logs import read_log

OPTIONS = [
    *("--samples", "12000", "--hidden", "4", "--metrics-every", "500", "--checkpoint-every", "1000"),
    *("--method", "uoro:memory=2", "--predictions", "file", "--quiet", "--seed", "3"),
]
# Killed before, in and after every phase: importing, compiling, training, writing, drawing.
LONGEST = 6.0


def norewind(*arguments, stdin=None):
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": os.environ["NOREWIND_TEST_CACHE"]}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    command = [sys.executable, "-m", "norewind", *map(str, arguments)]
    return subprocess.Popen(command, stdin=stdin, stderr=subprocess.PIPE, env=environment)
