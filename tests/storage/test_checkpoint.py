"""A checkpoint is loaded exactly as it was saved, or rejected."""

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
from alike import same_bits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import norewind
from norewind.storage import checkpoint, files
from norewind.storage.checkpoint import FORMAT, CheckpointError, DamagedError, Writer, checkpoints, load, read, save

TREE = {
    "float": jnp.array([1.5, -0.0, jnp.inf, jnp.nan]),
    "half": jnp.array([0.1, -2], jnp.float16),
    "brain": jnp.array([[0.1, jnp.nan], [3, -0.0]], jnp.bfloat16),
    "small": jnp.array([0.5, 2], jnp.float8_e4m3fn),
    "complex": jnp.array([complex(-0.0, np.inf), complex(np.nan, 1), 2 - 3j]),
    "whole": jnp.array([[1], [-2]]),
    "byte": jnp.array(255, jnp.uint8),
    "truth": jnp.array([True, False]),
    "empty": jnp.zeros((0, 3)),
    "key": jax.random.key(7),
    "keys": jax.random.split(jax.random.key(8, impl="rbg"), 3),
    "nested": ({"one": jnp.ones(2)}, [jnp.zeros(()), None]),
}


def named(folder: Path, content: bytes, samples: int = 1) -> Path:
    """Write a file with any content, whose name has the correct checksum."""
    path = folder / f"{samples:015d}-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    path.write_bytes(content)
    return path


def test_every_kind_of_array_is_restored_bit_for_bit(tmp_path):
    path = save(tmp_path, 12, TREE, {"words": "ä\n", "left": [1, None]})
    tree, extra = load(path, jax.tree.map(jnp.zeros_like, TREE))
    assert same_bits(tree, TREE)
    assert (extra["samples"], extra["words"], extra["left"]) == (12, "ä\n", [1, None])
    assert extra["version"] == norewind.__version__


def test_double_precision_is_restored(tmp_path, x64):
    tree = {"a": jnp.array([0.1, 1 / 3]), "b": jnp.array([1e-300j]), "c": jnp.array(2**40)}
    assert tree["a"].dtype == jnp.float64
    assert same_bits(load(save(tmp_path, 0, tree, {}), tree)[0], tree)


@pytest.mark.parametrize("make", [norewind.uoro, norewind.estimators.dni])
def test_a_restored_run_continues_as_the_original(tmp_path, make):
    cell = norewind.cells.lstm(inputs=3, hidden=2, outputs=3)
    learner = norewind.online(make(cell.transition, norewind.losses.cross_entropy), optax.adam(1e-2))
    start = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    symbols = jnp.arange(21) % 3
    run, _, _ = learner.scan(start, symbols[:-1], symbols[1:])
    restored, _ = load(save(tmp_path, 20, run, {}), start)
    assert same_bits(restored, run)
    assert same_bits(*(learner.scan(each, symbols[:-1], symbols[1:]) for each in (run, restored)))


def test_a_step_after_saving_does_not_reach_into_the_checkpoint(tmp_path):
    """Arrays are copied when they are passed in, not when they are written."""
    leaf = np.ones(3)
    writer = Writer(tmp_path)
    writer.submit(1, {"a": leaf}, {}, before=lambda: leaf.fill(2))
    writer.wait()
    assert read(checkpoints(tmp_path)[0])[0]["['a']"].tolist() == [1, 1, 1]


def test_only_the_latest_stay(tmp_path):
    for samples in (5, 10, 9_999, 10_000):
        save(tmp_path, samples, {"a": jnp.zeros(1)}, {}, keep=2)
    assert [int(path.name[:15]) for path in checkpoints(tmp_path)] == [9_999, 10_000]


def test_leftovers_of_a_crash_are_removed(tmp_path):
    path = save(tmp_path, 5, {"a": jnp.zeros(1)}, {})
    half = tmp_path / f".{path.name}.123.part"
    half.write_bytes(path.read_bytes()[:50])
    (tmp_path / "notes.safetensors").write_text("not ours")
    assert checkpoints(tmp_path) == [path]
    Writer(tmp_path)
    assert not half.exists()
    assert (tmp_path / "notes.safetensors").exists()


def test_an_error_in_the_background_is_raised_in_the_foreground(tmp_path, monkeypatch):
    writer = Writer(tmp_path)
    writer.submit(1, {"a": jnp.zeros(100)}, {})
    writer.wait()
    (good,) = checkpoints(tmp_path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    writer.submit(2, {"a": jnp.ones(100)}, {})
    with pytest.raises(OSError, match="No space left"):
        writer.submit(3, {"a": jnp.ones(100)}, {})
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == [good.name]
    read(good)
    # It continues once there is space again.
    writer.submit(4, {"a": jnp.ones(100)}, {})
    writer.wait()
    assert len(checkpoints(tmp_path)) == 2


def test_a_folder_that_was_deleted_is_not_created_again(tmp_path):
    writer = Writer(tmp_path / "run" / "checkpoints")
    shutil.rmtree(tmp_path / "run")
    writer.submit(1, {}, {})
    with pytest.raises(FileNotFoundError, match="deleted"):
        writer.wait()
    assert not (tmp_path / "run").exists()


def test_every_flipped_byte_is_noticed(tmp_path):
    path = save(tmp_path, 5, {"a": jnp.arange(3.0)}, {})
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        with pytest.raises(DamagedError, match="do not match the checksum"):
            read(path)


def test_extra_arrays_are_restored_bit_for_bit(tmp_path):
    arrays = [np.array([[1.5, np.nan], [-0.0, np.inf]]).T, np.zeros((0, 3), np.int32), np.array(7), np.array([True])]
    run = {"['extra 1']": jnp.arange(3.0), "double": np.arange(2) / 3}
    extra = {"list": [None, *arrays], "inside": {"array": arrays[0], "stored as": "x"}, "text": "stored as"}
    restored, metadata = load(save(tmp_path, 5, run, extra), run)
    assert same_bits(run, restored)
    assert isinstance(restored["double"], np.ndarray)
    assert metadata["list"][0] is None
    assert same_bits(metadata["list"][1:], arrays)
    assert same_bits(metadata["inside"].pop("array"), arrays[0])
    assert (metadata["inside"], metadata["text"]) == ({"stored as": "x"}, "stored as")
    with pytest.raises(TypeError, match="a set is neither JSON nor a NumPy array"):
        save(tmp_path, 6, run, {"set": {1}})


def test_a_missing_array_is_noticed(tmp_path):
    for name in ("nothing", [], None):
        about = {"norewind": json.dumps({"format": FORMAT, "position": {"stored as": name}})}
        with pytest.raises(CheckpointError, match="not a complete safetensors file"):
            read(named(tmp_path, safetensors.numpy.save({"a": np.zeros(1)}, about)))


def test_every_truncation_is_noticed(tmp_path):
    path = save(tmp_path, 5, {"a": jnp.arange(3.0)}, {})
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedError, match=f"its {length} bytes"):
            read(path)


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_rejected_with_an_explanation(tmp_path, monkeypatch, other):
    monkeypatch.setattr(checkpoint, "FORMAT", other)
    monkeypatch.setattr(norewind, "__version__", "9.9")
    path = save(tmp_path, 5, {"a": jnp.zeros(1)}, {"format": FORMAT})
    monkeypatch.undo()
    with pytest.raises(
        CheckpointError, match=f"format {other} and was written by norewind 9.9. .* Use the version"
    ) as caught:
        read(path)
    # The checkpoint is valid, so there is no reason to return to an older one.
    assert not isinstance(caught.value, DamagedError)


@pytest.mark.parametrize("version", [str(FORMAT), None, 0, -1, True, float(FORMAT), [FORMAT]])
def test_an_invalid_format_is_rejected(tmp_path, version):
    content = safetensors.numpy.save({"a": np.zeros(1)}, {"norewind": json.dumps({"format": version})})
    with pytest.raises(CheckpointError, match="has format"):
        read(named(tmp_path, content))


def test_another_models_checkpoint_is_rejected_by_name_and_shape(tmp_path):
    path = save(tmp_path, 5, {"w": jnp.zeros((2, 3)), "b": jnp.zeros(2)}, {})
    with pytest.raises(CheckpointError, match=r"\['b'\] is float32 of shape \(2,\) in the checkpoint, .* shape \(4,\)"):
        load(path, {"w": jnp.zeros((2, 3)), "b": jnp.zeros(4)})
    with pytest.raises(CheckpointError, match=r"\['b'\] is float32 .* int32"):
        load(path, {"w": jnp.zeros((2, 3)), "b": jnp.zeros(2, int)})
    with pytest.raises(CheckpointError, match=r"\['b'\] is in the checkpoint only"):
        load(path, {"w": jnp.zeros((2, 3))})
    with pytest.raises(CheckpointError, match=r"\['u'\] is not in the checkpoint: it was made with another model"):
        load(path, {"w": jnp.zeros((2, 3)), "b": jnp.zeros(2), "u": jnp.zeros(2)})


def test_other_names_and_missing_files_are_rejected(tmp_path):
    with pytest.raises(CheckpointError, match="not named like a checkpoint"):
        read(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        read(tmp_path / f"{5:015d}-{0:016x}.safetensors")


def header(entries: dict, length: int | None = None) -> bytes:
    text = json.dumps(entries).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text


GOOD = {"__metadata__": {"norewind": json.dumps({"format": FORMAT})}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        header(GOOD, 2**63),
        header(GOOD, 2**64 - 1) + b" " * 100,
        header({**GOOD, "a": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 2**62]}}),
        header({**GOOD, "a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 0]}}),
        header({**GOOD, "a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}) + bytes(4),
        header({**GOOD, "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}) + bytes(4),
        header({**GOOD, "a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}) + bytes(4),
        header({**GOOD, "a": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}}) + bytes(8),
        header({**GOOD, "a": 3}),
        header({"__metadata__": {"norewind": "[" * 100_000}}),
        header({"__metadata__": {"norewind": "3"}}),
        header({"__metadata__": {"norewind": "[]"}}),
        header({"__metadata__": {}}),
        b"\x05\0\0\0\0\0\0\0[1,2]",
        header({})[:8] + b'{"__metadata__":' * 50_000,
    ],
    ids=range(17),
)
def test_bombs_and_garbage_are_rejected(tmp_path, content):
    with pytest.raises(CheckpointError):
        load(named(tmp_path, content), {"a": jnp.zeros(2)})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def rejected_or_whole(place, content):
    """Any bytes give the requested arrays, or a CheckpointError."""
    path = named(place, content)
    like = {"a": jnp.zeros(2)}
    try:
        tree, extra = load(path, like)
    except CheckpointError:
        return
    finally:
        path.unlink()
    assert tree["a"].shape == (2,)
    assert tree["a"].dtype == jnp.float32
    assert extra["format"] == 1


# A slow machine must not make the test fail.
fuzzed = settings(
    derandomize=True, deadline=None, max_examples=80, database=None, suppress_health_check=[HealthCheck.too_slow]
)


@fuzzed
@given(content=st.binary(max_size=200))
def test_arbitrary_bytes_give_nothing_but_a_checkpoint_error(place, content):
    rejected_or_whole(place, content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=3,
)
ENTRY = JSON | st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F64", "I32", "BF16", "BOOL", "C64", "F4", "U8"]),
        "shape": st.lists(st.integers(-1, 4), max_size=3),
        "data_offsets": st.lists(st.integers(-1, 20), min_size=2, max_size=2),
    }
)


@fuzzed
@given(
    entries=st.dictionaries(st.sampled_from(["['a']", "['b']", ""]), ENTRY, max_size=2),
    about=st.dictionaries(st.sampled_from(["format", "version", "position"]), JSON | st.just(1), max_size=3),
    data=st.binary(max_size=20),
)
def test_arbitrary_headers_give_nothing_but_a_checkpoint_error(place, entries, about, data):
    rejected_or_whole(place, header({"__metadata__": {"norewind": json.dumps(about)}, **entries}) + data)


@fuzzed
@given(spot=st.integers(0, 400), new=st.binary(min_size=1, max_size=4))
def test_a_forged_checkpoint_gives_nothing_but_a_checkpoint_error(place, spot, new):
    """Bytes are replaced in a valid file, and its name has the new checksum."""
    about = {"norewind": json.dumps({"format": 1, "samples": 3})}
    good = safetensors.numpy.save({"['a']": np.ones(2, np.float32)}, about)
    spot %= len(good)
    rejected_or_whole(place, good[:spot] + new + good[spot + len(new) :])


class Trap:
    def __reduce__(self):
        return os.mkdir, ("sprung",)


def test_nothing_in_a_checkpoint_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    objects = np.array([Trap()], object)
    np.save("trap.npy", objects, allow_pickle=True)
    for content in (pickle.dumps(Trap()), Path("trap.npy").read_bytes()):
        with pytest.raises(CheckpointError):
            load(named(tmp_path, content), {"a": jnp.zeros(2)})
    about = {"norewind": json.dumps({"format": FORMAT})}
    path = named(tmp_path, safetensors.numpy.save({"['a']": np.frombuffer(pickle.dumps(Trap()), np.uint8)}, about))
    with pytest.raises(CheckpointError, match="uint8"):
        load(path, {"a": jnp.zeros(2)})
    assert not Path("sprung").exists()


def test_a_folder_may_be_a_string(tmp_path):
    run = {"weights": np.arange(3.0)}
    path = checkpoint.save(str(tmp_path), 7, run)
    assert checkpoint.checkpoints(str(tmp_path)) == [path]
    restored, extra = checkpoint.load(str(path), run)
    assert np.array_equal(restored["weights"], run["weights"])
    assert extra["samples"] == 7


def test_large_checkpoints_are_fewer(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MAX_CHECKPOINT_BYTES", 10_000)
    run = {"table": np.zeros(1_000, np.float32)}
    for samples in range(1, 6):
        checkpoint.save(tmp_path, samples, run, keep=4)
    assert [int(path.name[:15]) for path in checkpoint.checkpoints(tmp_path)] == [4, 5]
    checkpoint.save(tmp_path, 6, {"table": np.zeros(10_000, np.float32)}, keep=4)
    assert [int(path.name[:15]) for path in checkpoint.checkpoints(tmp_path)] == [6]


def test_the_latest_of_twins_stays(tmp_path):
    for number in range(8):
        path = checkpoint.save(tmp_path, 5, {"number": np.full(1, number)}, keep=1)
        assert checkpoint.checkpoints(tmp_path) == [path]


def test_a_checkpoint_removes_no_later_ones(tmp_path):
    """A process that was paused may have lost the run to another one, which continues from a later checkpoint."""
    later = [checkpoint.save(tmp_path, samples, {"number": np.zeros(1)}) for samples in (2, 3)]
    own = checkpoint.save(tmp_path, 1, {"number": np.zeros(1)}, keep=1)
    assert checkpoints(tmp_path) == [own, *later]


def test_rows_that_wait_are_saved_as_arrays(tmp_path):
    waiting = np.zeros((43_200, 40, 3))
    path = save(tmp_path, 1, {"w": np.zeros(3)}, {"position": {"stream": {"waiting": waiting}}})
    assert path.stat().st_size < waiting.nbytes + 10_000
