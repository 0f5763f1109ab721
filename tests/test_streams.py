"""Streams: the same samples however they are cut, delivered or resumed, and a clear word about bad input."""

import builtins
import json
import os
import re
import subprocess
import sys
import threading
import tracemalloc
from itertools import cycle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from norewind import tasks
from norewind.streams import ByteStream, CharacterStream, RowStream, Source, StreamError, TaskStream

policies = st.sampled_from(["fail", "skip"])
quick = settings(
    derandomize=True, deadline=None, database=None, max_examples=60, suppress_health_check=list(HealthCheck)
)


class Fragments(Source):
    """The bytes come in pieces of these sizes."""

    def __init__(self, descriptor, sizes, **options):
        super().__init__(descriptor, **options)
        self.sizes = cycle(sizes)

    def _read(self, size, deadline):
        return super()._read(min(size, next(self.sizes)), deadline)


class Pipe:
    """A pipe with some bytes in it."""

    def __init__(self, data, sizes=(1 << 16,), **options):
        self.reader, writer = os.pipe()
        assert not data or os.write(writer, data) == len(data)
        os.close(writer)
        self.source = Fragments(self.reader, sizes, **options)

    def __enter__(self):
        return self.source

    def __exit__(self, *_):
        os.close(self.reader)


def saved(position):
    """A position as it comes back from a checkpoint."""
    return json.loads(json.dumps(position, allow_nan=False))


def one_by_one(samples):
    parts = [part for part in samples if part is not None]
    return [tuple(part[i].tobytes() for part in parts) for i in range(len(samples.xs))]


def drain(stream, counts=(1,), patience=None):
    """All samples, the position after every take, and how it ended: where, or with which error."""
    samples, positions = [], {0: saved(stream.position())}
    try:
        for count in cycle(counts):
            taken = stream.take(count, patience)
            if taken is None:
                assert stream.take(count, patience) is None
                return samples, positions, (saved(stream.position()), stream.counts)
            assert (0 if patience == 0 else 1) <= len(taken.xs) <= count
            samples += one_by_one(taken)
            position = saved(stream.position())
            assert positions.setdefault(len(samples), position) == position
            assert stream.counts == position["counts"]
    except StreamError as error:
        return samples, positions, re.sub(r"descriptor \d+", "descriptor", str(error))


def check_every_way(make, data, counts, sizes):
    """However a stream is cut, delivered or resumed, it hands out the same, and is where it should be."""
    with Pipe(data) as source:
        try:
            stream = make(source)
        except StreamError:
            return  # said before anything is read
        samples, positions, end = drain(stream)
    with Pipe(data, sizes) as source:
        in_pieces = drain(make(source), counts, patience=0)
    with Pipe(data) as source:
        in_chunks = drain(make(source), counts)
    for others, cuts, other_end in (in_pieces, in_chunks):
        assert others == samples
        assert cuts.items() <= positions.items()
        assert other_end == end
    for taken, position in positions.items():
        with Pipe(data, sizes) as source:
            rest, _, rest_end = drain(make(source, position=position), counts)
        assert rest == samples[taken:]
        assert rest_end == end


counts = st.lists(st.integers(1, 7), min_size=1, max_size=4)
sizes = st.lists(st.integers(1, 9), min_size=1, max_size=4)
texts = st.text("ab\nä€😀x", max_size=30).map(str.encode)
spoiled = st.lists(st.one_of(texts, st.binary(max_size=3)), max_size=6).map(b"".join)


@quick
@given(st.binary(max_size=20), counts, sizes)
def test_bytes_are_the_same_every_way(data, counts, sizes):
    check_every_way(ByteStream, data, counts, sizes)


@quick
@given(st.one_of(texts, spoiled), counts, sizes, st.sampled_from([None, "abä\n", "b€😀"]), st.integers(1, 5), policies)
def test_characters_are_the_same_every_way(data, counts, sizes, alphabet, size, bad):
    def make(source, position=None):
        return CharacterStream(source, alphabet, size=size, bad=bad, position=position)

    check_every_way(make, data, counts, sizes)


numbers = st.sampled_from(["1", "-2.5", "3e2", " 4", "0", "1e-9", "7", "8", "9"])
odd = st.sampled_from(["", "NA", "nan", "null", "x", "inf", "1e999", '"5"', '"', "1_0", "é", "true"])
field = st.one_of(numbers, numbers, numbers, numbers, numbers, odd)
csv_line = st.one_of(st.tuples(field, field).map(",".join), st.lists(field, max_size=3).map(",".join))
json_line = st.one_of(
    st.tuples(numbers, field).map(lambda pair: f'{{"a": {pair[0]}, "b": {pair[1] or "{}"}}}'),
    st.sampled_from(["", "{", '{"a": 1}', '{"a": [1]}', '{"b": "2", "a": true}', "[1]", '{"a": "3", "b": NaN}']),
)
ends = st.sampled_from(["", "\n", "\r\n", "\xff"])


def row_options():
    return st.fixed_dictionaries(
        {
            "horizon": st.integers(0, 3),
            "missing": st.sampled_from(["last", "mean", "fail", "skip"]),
            "bad": policies,
            "standardise": st.booleans(),
        }
    ).map(lambda options: {"inputs": ["a"], "targets": ["b"], **options} if options["horizon"] == 0 else options)


@quick
@given(st.lists(csv_line, max_size=25), ends, row_options(), counts, sizes)
def test_csv_is_the_same_every_way(lines, end, options, counts, sizes):
    def make(source, position=None):
        return RowStream(source, position=position, **options)

    check_every_way(make, "\n".join(["a,b", "1,2", *lines]).encode() + end.encode("latin-1"), counts, sizes)


@quick
@given(st.lists(json_line, max_size=25), ends, row_options(), counts, sizes)
def test_json_lines_are_the_same_every_way(lines, end, options, counts, sizes):
    def make(source, position=None):
        return RowStream(source, format="jsonl", position=position, **options)

    check_every_way(make, "\n".join(['{"b": 1, "a": 2}', *lines]).encode() + end.encode("latin-1"), counts, sizes)


@quick
@given(counts, st.sampled_from([tasks.anbn(1, 4), tasks.distant_brackets()]))
def test_a_task_is_the_same_every_way(counts, text):
    stream, whole = TaskStream(text, 3), next(text.chunks(3, 5002))
    taken = 0
    for count in [*counts, 4090, *counts]:
        position = saved(stream.position())
        for again in (stream, TaskStream(text, 3, position=position)):
            samples = again.take(count)
            np.testing.assert_array_equal(samples.xs, whole[taken : taken + count])
            np.testing.assert_array_equal(samples.targets, whole[taken + 1 : taken + count + 1])
        taken += count
