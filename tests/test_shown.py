"""What people see when they display a run or a table."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind import adam, bptt, cells, online
from norewind.instruments.compare import Comparison
from norewind.instruments.diagnosis import Diagnosis, Finding, Span, Value
from norewind.learners.ahead import Ahead
from norewind.losses import known_squared_error
from norewind.run import Run


def small_run(**changes):
    zero = jnp.zeros((), jnp.int32)
    parts = {"params": {"w": jnp.ones((3, 4)), "b": jnp.ones(3)}, "state": jnp.zeros(3), "carry": jnp.zeros(15)}
    run = Run(**parts, optimizer=(), steps=zero + 1200, samples=zero + 2400, skipped=zero, initial_state=jnp.zeros(3))
    return run._replace(**changes)


def test_a_run_is_five_lines_without_its_weights():
    assert repr(small_run()).splitlines() == [
        "Run after 2,400 samples",
        "  steps: 1,200, of which 0 were skipped",
        "  parameters: 15 numbers in 2 arrays",
        "  state: 3 numbers in 1 array",
        "  carry: 15 numbers in 1 array; optimizer: 0 numbers in 0 arrays",
    ]
    assert "2 more wait" in repr(small_run(pending=(1, 2)))
    assert "<th" in small_run()._repr_html_()
    assert "1." not in small_run()._repr_html_()


def test_a_run_can_be_shown_inside_a_transformation():
    seen = []
    jax.jit(lambda run: seen.append(repr(run)) or run.samples)(small_run())
    assert len(seen[0].splitlines()) == 5


def test_tables_are_html_in_a_notebook(monkeypatch):
    monkeypatch.setattr(Comparison, "methods", lambda self: {"a<b": [{"curve": [3.0, 2.0, 1.0], "samples": 3}]})
    monkeypatch.setattr(Comparison, "table", lambda self: "| method |\n|---|\n| uoro |\n\nnote")
    page = Comparison.__new__(Comparison)._repr_html_()
    assert "<td>uoro</td>" in page
    assert "a&lt;b █▅▁" in page


def test_a_diagnosis_shows_cosines_on_one_scale():
    none = Value(0.0, 0.0)
    spans = [Span(end, none, none, Value(cosine, 0.1)) for end, cosine in ((5, 1.0), (10, 0.5), (15, -0.2))]
    finding = Finding("a<b", 8, 15, 3, none, none, Value(0.9, 0.0), spans)
    page = Diagnosis([finding], "rtrl", moving=False)._repr_html_()
    assert "<td>a&lt;b</td>" in page
    assert "a&lt;b, hidden 8 █▅▁" in page


def test_a_run_ahead_shows_what_waits_without_numbers():
    cell = cells.rnn(1, 2, 1, symbols=False)
    ahead = Ahead(online(bptt(cell.transition, known_squared_error), adam(1e-3)), known_squared_error, steps=(2,))
    row = np.zeros(1, np.float32)
    start = ahead.learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    run = ahead.init(start, row, row, row)
    assert repr(run).splitlines()[:3] == [
        "AheadRun after 0 rows",
        "  waiting: at most 2 rows for their targets; 2 rows of forecasts",
        "  Run.params: 11 numbers in 5 arrays",
    ]
    assert "<th" in run._repr_html_()
    assert "[" not in run._repr_html_()
