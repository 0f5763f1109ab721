"""Waiting for a pipe, constant memory, unreadable files, and which code closes a source."""

import builtins
import gc
import os
import subprocess
import sys
import threading
import tracemalloc
import warnings
from contextlib import contextmanager, suppress

import pytest
from stream_pipes import Pipe, saved

from norewind import tasks
from norewind.streams import ByteStream, CharacterStream, ReadOptions, RowStream, Source, StreamError, TaskStream

BARE = ReadOptions(header=False)
BARE_SKIPPING = ReadOptions(header=False, bad="skip")
AFTER = {"kind": "bytes", "offset": 7, "crc": 1, "lines": 0, "counts": {}, "previous": 3}

# Waiting.


def produce(pieces):
    """The reading end of a pipe that another thread fills, and an event that starts the next piece."""
    reader, writer = os.pipe()
    taken = threading.Semaphore(0)

    def write():
        for piece in pieces:
            with suppress(BrokenPipeError):
                os.write(writer, piece)
            taken.acquire()
        os.close(writer)

    threading.Thread(target=write, daemon=True).start()
    return reader, taken


def test_a_timeout_returns_the_samples_that_have_arrived():
    reader, taken = produce([b"a\n0\n1", b"\n2\n3\n", b"4\n"])
    # The columns are inferred from the rows that arrive within a second of the first.
    stream = RowStream(Source(reader), inputs=["a"], standardise=False)
    assert stream.position()["offset"] == 0
    assert stream.take(5, timeout=0.01).xs.tolist() == [[0]]
    assert stream.take(5, timeout=0.01).xs.shape == (0, 1)
    taken.release()
    samples = []
    while len(samples) < 3:
        samples += stream.take(5, timeout=0.01).xs.tolist()
    assert samples == [[1], [2], [3]]
    taken.release()
    taken.release()
    assert stream.take(5).xs.tolist() == [[4]]
    assert stream.take(5) is None
    os.close(reader)


def test_a_timeout_ends_even_if_there_is_always_something_to_skip():
    with Pipe(b"a,b\n1,2\n" + b"x\n" * 1_000, sizes=[2]) as source:
        stream = RowStream(source, inputs=["a"], read_options=ReadOptions(bad="skip"))
        assert len(stream.take(1).xs) == 1
        assert len(stream.take(1, timeout=0).xs) == 0
        assert not source.ended
        assert stream.position()["offset"] == 8
        assert stream.counts == {}


def test_a_stop_request_ends_waiting():
    reader, taken = produce([b"abc"])
    assert Source(reader).size is None
    stopped = threading.Event()
    stream = ByteStream(Source(reader, stop=stopped.is_set))
    threading.Timer(0.1, stopped.set).start()
    assert len(stream.take(100).xs) == 2
    assert len(stream.take(100).xs) == 0
    taken.release()
    os.close(reader)


def test_a_stop_before_the_first_row():
    reader, taken = produce([b"a,b"])
    with pytest.raises(StreamError, match="stopped before its first row arrived"):
        RowStream(Source(reader, stop=lambda: True))
    with pytest.raises(StreamError, match="stopped at byte 0, before byte 7, where the run resumes"):
        ByteStream(Source(reader, stop=lambda: True), position=AFTER)
    taken.release()
    os.close(reader)


def test_a_process_in_a_pipeline():
    program = "import sys; from norewind.streams import *; print(len(ByteStream(Source('-')).take(10**7).xs))"
    program += "; assert 'jax' not in sys.modules"
    command = f"{sys.executable} -c \"print('ab' * 100_000, end='')\" | {sys.executable} -c \"{program}\""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("199999\n", "")


# Constant memory.


@contextmanager
def endless(piece, total):
    reader, writer = os.pipe()

    def write():
        for _ in range(total // len(piece)):
            os.write(writer, piece)
        os.close(writer)

    threading.Thread(target=write, daemon=True).start()
    yield Source(reader)
    os.close(reader)


@pytest.mark.parametrize(
    ("make", "piece"),
    [
        (ByteStream, b"abcdefgh" * 1000),
        (CharacterStream, "abcdä€😀\n".encode() * 1000),
        (lambda source: CharacterStream(source, "xy", bad="skip"), b"x" + b"abcdefgh" * 1000),
        (lambda source: RowStream(source, read_options=BARE, inputs=["1"]), b"1,2,3" + b",4" * 5000 + b"\n"),
        (
            lambda source: RowStream(source, read_options=BARE_SKIPPING),
            b"1\n" + b"1" + b",4" * 5000 + b"\n",
        ),
        (
            lambda source: RowStream(source, read_options=BARE_SKIPPING),
            b"1\n2\n" + b"3" * (1 << 21) + b"\n",
        ),
    ],
    ids=["bytes", "characters", "unknown", "rows", "bad rows", "long lines"],
)
def test_ten_million_bytes_in_little_memory(make, piece):
    with endless(piece, 10**7) as source:
        stream = make(source)
        stream.take(1)  # loads the compiled loops, which allocate memory once
        tracemalloc.start()
        try:
            samples = sum(len(taken.xs) for taken in iter(lambda: stream.take(2000), None))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert samples > 0
    assert peak < 4e6


# Files.


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(StreamError, match="nowhere does not exist"):
        Source(tmp_path / "nowhere")
    with pytest.raises(StreamError, match="is a folder"):
        Source(tmp_path)
    with pytest.raises(StreamError, match="cannot be opened"):
        Source("a\0b")

    def denied(*_, **__):
        raise PermissionError

    monkeypatch.setattr(builtins, "open", denied)
    with pytest.raises(StreamError, match="cannot be read: permission denied"):
        Source(tmp_path / "secret")


def test_a_file_that_shrinks(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"ab" * 100_000)
    source = Source(path)
    assert source.size == 200_000
    with ByteStream(source) as stream:
        read = len(stream.take(10).xs)
        os.truncate(path, 150_000)
        with pytest.raises(StreamError, match="shrank while it was read: it had 200000 bytes and now has 150000"):
            while True:
                read += len(stream.take(1000).xs)
    assert read == (1 << 16) - 1  # bytes read earlier are returned first


# Closing.


def unclosed(use):
    """Return files that are still open when they are no longer referenced."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        use()
        gc.collect()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("make", [ByteStream, CharacterStream, RowStream])
def test_closing_a_stream_closes_its_file(make, tmp_path):
    path = tmp_path / "data"
    path.write_text("1\n2\n3\n4\n5\n6\n")

    def use(*, close):
        stream = make(Source(path))
        stream.take(2)
        position = saved(stream.position())
        if close:
            with stream as same:
                assert same is stream
            stream.close()
            with pytest.raises(ValueError, match="data is closed"):
                stream.take(1)
        assert saved(stream.position()) == position

    assert unclosed(lambda: use(close=True)) == []
    assert len(unclosed(lambda: use(close=False))) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda source: ByteStream(source, position={}),
        lambda source: ByteStream(source, position=AFTER),
        lambda source: CharacterStream(source, "aa"),
        lambda source: CharacterStream(source, bad="sometimes"),
        lambda source: RowStream(source, horizon=-1),
        lambda source: RowStream(source, inputs=["b"]),
    ],
)
def test_a_stream_that_cannot_be_made_closes_its_file(make, tmp_path):
    path = tmp_path / "data"
    path.write_text("a\n1\n")

    def use():
        with pytest.raises(StreamError):
            make(Source(path))

    assert unclosed(use) == []


def test_a_descriptor_is_not_closed():
    with Pipe(b"abcd") as source:
        with ByteStream(source) as stream:
            stream.take(1)
        os.fstat(source.descriptor)
        with pytest.raises(ValueError, match="file descriptor .* is closed"):
            stream.take(1)


def test_a_task_can_be_closed_like_any_stream():
    with TaskStream(tasks.anbn()) as stream:
        assert len(stream.take(3).xs) == 3


def test_a_pipe_that_nobody_writes_to_is_opened_at_once(tmp_path):
    path, late = tmp_path / "pipe", threading.Event()
    os.mkfifo(path)

    def write():
        late.set()
        path.write_bytes(b"abc")

    timer = threading.Timer(2, write)
    timer.start()
    with ByteStream(Source(path, stop=lambda: not late.is_set())) as stream:
        assert len(stream.take(5).xs) == 0
        assert not late.is_set()
        late.wait()
        assert bytes(stream.take(5).targets.tolist()) == b"bc"
    timer.join()
