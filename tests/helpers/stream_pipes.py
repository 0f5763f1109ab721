"""Pipes for the tests of streams, filled with bytes that arrive in pieces."""

import json
import os
import re
from dataclasses import replace
from itertools import cycle

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from norewind.streams import ReadOptions, RowStream, Source, StreamError
from norewind.streams.source import BLOCK_BYTES

policies = st.sampled_from(["stop", "skip"])
quick = settings(
    derandomize=True, deadline=None, database=None, max_examples=60, suppress_health_check=list(HealthCheck)
)


class Fragments(Source):
    """Deliver the bytes in pieces of these sizes."""

    def __init__(self, descriptor, sizes, **options):
        super().__init__(descriptor, **options)
        self.descriptor = descriptor
        self.sizes = cycle(sizes)

    def read(self, size=BLOCK_BYTES):
        return super().read(min(size, next(self.sizes)))


class Pipe:
    """A pipe that holds some bytes."""

    def __init__(self, data, sizes=(1 << 16,), **options):
        self.reader, writer = os.pipe()
        assert not data or os.write(writer, data) == len(data)
        os.close(writer)
        self.source = Fragments(self.reader, sizes, **options)

    def __enter__(self):
        return self.source

    def __exit__(self, *_):
        os.close(self.reader)


def row_stream(source, make=RowStream, *, read_options=ReadOptions(), missing="last", bad="stop", **options):  # noqa: B008
    """Open a stream of rows. Read options are passed like all other options."""
    return make(source, read_options=replace(read_options, missing=missing, bad=bad), **options)


def saved(position):
    """A position as text, with the bytes of its arrays, so that two of them can be compared."""

    def stored(array):
        return {"array": array.tobytes().hex(), "dtype": str(array.dtype), "shape": array.shape}

    return json.dumps(position, allow_nan=False, default=stored)


def loaded(text):
    """Return a position as it is restored from a checkpoint."""

    def array(entry):
        if "array" not in entry:
            return entry
        return np.frombuffer(bytes.fromhex(entry["array"]), entry["dtype"]).reshape(entry["shape"])

    return json.loads(text, object_hook=array)


def one_by_one(samples):
    parts = [part for part in samples if part is not None]
    return [
        tuple(np.asarray(part[i]).tobytes() if part.dtype != object else part[i] for part in parts)
        for i in range(len(samples.xs))
    ]


def drain(stream, counts=(1,), timeout=None):
    """Return all samples, the position after every take, and where it ended or with which error."""
    samples, positions = [], {0: saved(stream.position())}
    try:
        with stream:
            for count in cycle(counts):
                taken = stream.take(count, timeout)
                if taken is None:
                    assert stream.take(count, timeout) is None
                    return samples, positions, (saved(stream.position()), stream.counts)
                assert (0 if timeout == 0 else 1) <= len(taken.xs) <= count
                samples += one_by_one(taken)
                position = saved(stream.position())
                assert positions.setdefault(len(samples), position) == position
                assert stream.counts == loaded(position)["counts"]
    except StreamError as error:
        return samples, positions, re.sub(r"descriptor \d+", "descriptor", str(error))
