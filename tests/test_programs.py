"""Programs that a later process loads: only what is the same in every respect is loaded, and gives the same numbers."""

import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from types import MethodType

import jax
import numpy as np
import pytest
from jax.tree_util import tree_map
from quick import slow_but

from norewind import cells, losses, names, optimizers, programs, trees
from norewind.compilation import compiled, compiled_loop
from norewind.estimators import uoro
from norewind.identity import NoIdentity, environment, identity
from norewind.learner import online
from norewind.learners.counts import counts
from norewind.learners.least_squares import LeastSquares, lags, learn_some, oscillators
from norewind.learners.mix import mix
from norewind.programs import remembered
from norewind.runs.start import start

RUNS = Path(__file__).parent


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for programs, as if this were a new process."""
    monkeypatch.setenv(programs.PROGRAMS, str(tmp_path / "programs"))
    programs._folder.cache_clear()
    yield tmp_path / "programs"
    programs._folder.cache_clear()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.program")) if folder.exists() else []


def loads_only(monkeypatch) -> None:
    monkeypatch.setattr(programs.Program, "_compiled", property(lambda program: pytest.fail("it was compiled again")))


def test_the_next_process_loads_it(folder, monkeypatch):
    x = np.arange(5, dtype=np.float32)
    expected = compiled(trees.norm)(x)
    assert len(files(folder)) == 1
    assert folder.stat().st_mode & 0o777 == 0o700
    loads_only(monkeypatch)
    assert compiled(trees.norm)(x) == expected
    with pytest.raises(BaseException, match="compiled again"):
        compiled(trees.norm)(x[:4])


def test_what_several_threads_need_is_compiled_once(folder, monkeypatch):
    write, at_once = programs._write, threading.Barrier(3)
    written = []

    def noted(path, make):
        written.append(path)
        write(path, make)

    def one():
        program = compiled(trees.norm)
        at_once.wait()
        assert program(np.arange(6, dtype=np.float32)) > 1

    monkeypatch.setattr(programs, "_write", noted)
    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 1
    assert jax.config.values["jax_enable_compilation_cache"]


def test_who_has_a_program_does_not_wait_for_what_others_compile(folder):
    program, x = compiled(trees.norm), np.arange(7, dtype=np.float32)
    program(x)
    with programs._without_jax_cache(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs.Program, "_program", lambda *_: pytest.fail("it was asked for again"))
        assert program(x) > 1


def test_static_arguments_and_trees(folder, monkeypatch):
    features, rates = lags(2, 3), (0.99, 0.99**-0.5)
    learner = LeastSquares(features, 1, 0.99, 5.0)
    run, inputs = learner.init(), (np.ones((4, 2), np.float32), np.ones((4, 1), np.float32), None)
    static = {"transition": features.transition, "prior": 1.0, "limit": 5.0}

    def learned(outputs, **changed):
        loop = compiled_loop(learn_some, static_argnames=("transition", "prior", "limit", "outputs"))
        return loop(run, inputs, 4, rates, **(static | changed), outputs=outputs)

    first = learned(True), learned(False)
    loads_only(monkeypatch)
    same = learned(True, transition=lags(2, 3).transition), learned(False)
    tree_map(np.testing.assert_array_equal, same, first)
    for changed in ({"transition": oscillators(2, 3).transition}, {"limit": 4.0}):
        with pytest.raises(BaseException, match="compiled again"):
            learned(True, **changed)


@pytest.mark.parametrize("change", ["text", "flag", "setting", "type", "weak type"])
def test_what_changes_the_program_changes_its_name(folder, monkeypatch, change):
    x = np.arange(5, dtype=np.float32)
    compiled(trees.norm)(x)
    if change == "text":
        monkeypatch.setattr(programs, "environment", lambda: "another version")
    elif change == "flag":
        environment.cache_clear()
        monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "") + " ")
    elif change == "type":
        x = np.arange(5, dtype=np.int32)
    elif change == "weak type":
        compiled(trees.norm)(np.float32(1))
        x = jax.numpy.asarray(1.0)
    before = files(folder)
    with jax.default_matmul_precision("highest" if change == "setting" else None):
        compiled(trees.norm)(x)
    environment.cache_clear()
    assert len(files(folder)) == len(before) + 1


def test_the_environment_is_the_text_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr("norewind.identity.__file__", str(tmp_path / "identity.py"))
    seen = set()
    for text in ("a = 1", "a = 2"):
        (tmp_path / "module.py").write_text(text)
        environment.cache_clear()
        seen.add(environment())
    environment.cache_clear()
    assert len(seen) == 2


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_one_is_compiled_again(folder, damage):
    x = np.arange(5, dtype=np.float32)
    expected = compiled(trees.norm)(x)
    path = files(folder)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?" if damage is None else damage)
    assert compiled(trees.norm)(x) == expected
    assert programs._read(path) is not None


def test_nothing_is_loaded_from_a_folder_that_others_may_write_to(folder):
    folder.mkdir()
    folder.chmod(0o777)
    assert compiled(trees.norm)(np.ones(3, np.float32)) > 1
    assert not files(folder)


def test_a_folder_that_cannot_be_made(folder):
    folder.write_text("a file")
    assert compiled(trees.norm)(np.ones(3, np.float32)) > 1


def test_a_full_disk_is_no_trouble(folder, monkeypatch):
    monkeypatch.setattr(programs, "write_atomically", lambda path, content: (_ for _ in ()).throw(OSError(28, "full")))
    assert compiled(trees.norm)(np.ones(3, np.float32)) > 1


def test_the_least_recently_used_goes(folder, monkeypatch):
    program = compiled(trees.norm)
    program(np.ones(1, np.float32))
    program(np.ones(2, np.float32))
    old, new = sorted(files(folder), key=lambda path: path.stat().st_mtime_ns)
    os.utime(old, (1, 1))
    monkeypatch.setattr(programs, "LARGEST", sum(path.stat().st_size for path in (old, new)) + old.stat().st_size // 2)
    program(np.ones(3, np.float32))
    assert new in files(folder)
    assert old not in files(folder)
    assert len(files(folder)) == 2


def test_what_is_loaded_was_used(folder):
    compiled(trees.norm)(np.ones(1, np.float32))
    (path,) = files(folder)
    os.utime(path, (1, 1))
    compiled(trees.norm)(np.ones(1, np.float32))
    assert path.stat().st_mtime > 1


def test_without_jit_nothing_is_kept(folder):
    with jax.disable_jit():
        assert compiled(trees.norm)(np.ones(4, np.float32)) == 2
    assert not files(folder)


def test_functions_of_others_are_compiled_as_ever(folder):
    program = compiled(lambda x: x + 1)
    assert program(1) == 2
    assert compiled(partial(trees.where, np.array(True)))(np.ones(2), np.zeros(2)).sum() == 2
    assert len(files(folder)) == 1
    assert jax.jit(compiled(trees.norm))(np.ones(4, np.float32)) == 2
    assert jax.vmap(compiled(trees.norm))(np.ones((2, 4), np.float32)).tolist() == [2, 2]
    assert len(files(folder)) == 1


def test_identity_of_functions():
    def rate(*arguments):
        return identity(optimizers.inverse_sqrt(*arguments))

    assert rate(0.1, 0.3) == rate(0.1, 0.3)
    assert len({rate(0.1, 0.3), rate(0.1, 0.4), rate(0.3, 0.1), rate(1, 0.3), rate(1.0, 0.3), rate(True, 0.3)}) == 6
    gru = cells.gru(3, 4, 3)
    assert identity(gru) == identity(cells.gru(3, 4, 3))
    assert identity(gru) != identity(cells.gru(3, 5, 3))
    for refused in (lambda x: x, object(), RUNS, partial(cells.gru, lambda: 0), {"own": lambda: 0}, np.array([{}])):
        with pytest.raises(NoIdentity):
            identity(refused)


def ours(default, *, keyword=0, attribute=0):
    """A function as if it were of this package."""

    def function(x=default, *, y=keyword):
        return x, y

    function.__module__, function.attribute = "norewind.made", attribute
    return function


def test_identity_of_what_functions_hold():
    assert identity(ours(1)) == identity(ours(1))
    different = [
        ours(1),
        ours(2),
        ours(1, keyword=1),
        ours(1, attribute=1),
        MethodType(ours(1), 1),
        MethodType(ours(1), 2),
    ]
    assert len({identity(function) for function in different}) == len(different)
    one, other = [1], [2]
    assert identity(one, other, one) != identity(one, other, other)


@pytest.mark.parametrize("name", ["version", "processor"])
def test_the_environment_is_also_versions_and_the_processor(monkeypatch, name):
    environment.cache_clear()
    before = environment()
    monkeypatch.setattr(f"norewind.identity.{name}", lambda *_: "another")
    environment.cache_clear()
    assert environment() != before
    environment.cache_clear()


def test_identity_of_values():
    different = [
        *(1, 1.0, True, "1", b"1", None, (1,), [1], (1, 1), {"a": 1}, {"b": 1}, np.int32(1), np.float32(1)),
        *(np.ones(1), np.zeros(1), np.ones(1, np.float32), np.ones((1, 1)), jax.random.key(1), jax.random.key(2)),
        *(partial(trees.norm), partial(trees.norm, 1), partial(trees.norm, tree=1), trees.norm, trees.where),
        *(
            jax.numpy.asarray(1.0),
            jax.numpy.float32(1),
            ((1,), 2),
            (1, (2,)),
            uoro(cells.rnn(2, 3, 2).transition, losses.cross_entropy),
        ),
    ]
    assert len({identity(value) for value in different}) == len(different)
    assert len({identity(np.float32(value)) for value in (0.0, -0.0, np.nan)}) == 3


@pytest.mark.parametrize("name", slow_but(["lru", "gru", "lstm"], "lru"))
def test_the_start_of_a_run_is_remembered_to_the_bit(folder, monkeypatch, name):
    def started(seed):
        cell = names.cell(name)(3, 8, 2, symbols=False)
        return start(online(uoro(cell.transition, losses.squared_error), optimizers.adam(1e-3)), cell, seed)

    cell = names.cell(name)(3, 8, 2, symbols=False)
    weights, noise = jax.random.split(jax.random.key(7))
    learner = online(uoro(cell.transition, losses.squared_error), optimizers.adam(1e-3))
    expected = learner.init(cell.init(weights), cell.initial_state(), noise)
    assert same_bits(started(7), expected)
    assert [path.suffix for path in folder.iterdir()] == [".result"]
    assert not same_bits(started(8), expected)
    assert len([*folder.iterdir()]) == 2
    monkeypatch.setattr("norewind.runs.start.started", lambda *_: pytest.fail("it was computed again"))
    assert same_bits(started(7), expected)
    with pytest.raises(BaseException, match="computed again"):
        started(9)


def test_shapes_are_not_remembered(folder):
    assert jax.eval_shape(lambda: remembered(jax.numpy.ones, 3)).shape == (3,)
    assert not folder.exists() or not [*folder.iterdir()]
    assert remembered(jax.numpy.ones, 3).tolist() == remembered(jax.numpy.ones, 3).tolist() == [1, 1, 1]
    assert len([*folder.iterdir()]) == 1


def test_a_changed_number_is_not_believed(folder):
    assert remembered(jax.numpy.ones, 3).tolist() == [1, 1, 1]
    (path,) = folder.iterdir()
    one, two = (np.full(3, value, np.float32).tobytes() for value in (1, 2))
    path.write_bytes(path.read_bytes().replace(one, two))
    assert remembered(jax.numpy.ones, 3).tolist() == [1, 1, 1]


def test_large_results_and_weak_types_are_computed_again(folder, monkeypatch):
    remembered(jax.numpy.asarray, 1.0)
    monkeypatch.setattr(programs, "LARGEST_RESULT", 10)
    remembered(jax.numpy.ones, 3)
    assert not [*folder.iterdir()]


def same_bits(one, other) -> bool:
    def described(leaf):
        kind = jax.typeof(leaf)
        data = jax.random.key_data(leaf) if trees.is_key(leaf) else leaf
        return kind.shape, kind.dtype, kind.weak_type, np.asarray(data).tobytes()

    trees_are_same = jax.tree.structure(one) == jax.tree.structure(other)
    return trees_are_same and [*map(described, jax.tree.leaves(one))] == [*map(described, jax.tree.leaves(other))]


def test_counts_and_weights_start_the_same_to_the_bit(folder, monkeypatch):
    def both():
        return counts(5, megabytes=0.2).init(), mix(3).init()

    kept, again = both(), both()
    assert len([*folder.iterdir()]) == 2
    monkeypatch.delenv(programs.PROGRAMS)
    programs._folder.cache_clear()
    assert same_bits(kept, both())
    assert same_bits(again, kept)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--method", "uoro:window=4"], ["--loss", "classes", "--targets", "mode"]])
def test_runs_are_the_same_with_programs_kept_and_loaded(tmp_path, options):
    table = "".join(f"{i % 7},{i * i % 11},{'on' if i % 5 < 2 else 'off'}\n" for i in range(300))
    (tmp_path / "table.csv").write_text("a,b,mode\n" + table)
    written = []
    for number, cache in enumerate(("off", "kept", "kept")):
        environment = {**os.environ, "NOREWIND_CACHE": cache if cache == "off" else str(tmp_path / cache)}
        environment.pop("JAX_COMPILATION_CACHE_DIR")
        command = ["train", str(tmp_path / "table.csv"), "--out", str(tmp_path / f"{number}"), "--quiet", *options]
        subprocess.run([sys.executable, "-m", "norewind", *command], env=environment, check=True)
        written.append(numbers_in(tmp_path / f"{number}"))
        if number == 1:
            kept = {path: path.stat().st_ctime_ns for path in tmp_path.glob("kept/*/programs/*")}
    assert written[0] == written[1] == written[2]
    assert len(kept) > 2
    assert {*tmp_path.glob("kept/*/programs/*")} == {*kept}


def numbers_in(run: Path) -> dict[str, bytes]:
    import safetensors.numpy

    (path,) = (run / "checkpoints").glob("*.safetensors")
    return {name: array.tobytes() for name, array in safetensors.numpy.load_file(path).items()}
