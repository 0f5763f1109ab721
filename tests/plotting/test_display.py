"""How runs and tables are displayed."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind import adam, bptt, cells, online
from norewind.analysis.compare import Comparison
from norewind.analysis.findings import Diagnosis, Finding, Span, Value
from norewind.core.losses import known_squared_error
from norewind.core.run import Run
from norewind.learners.ahead import AheadLearner


def small_run(**changes):
    zero = jnp.zeros((), jnp.int32)
    parts = {"params": {"w": jnp.ones((3, 4)), "b": jnp.ones(3)}, "state": jnp.zeros(3), "carry": jnp.zeros(15)}
    run = Run(**parts, opt_state=(), steps=zero + 1200, samples=zero + 2400, skipped=zero, initial_state=jnp.zeros(3))
    return run._replace(**changes)


def test_a_run_is_one_line_without_its_weights():
    assert repr(small_run()) == "Run(samples=2400, steps=1200, skipped=0, 15 parameters)"
    assert "2 pending inputs" in repr(small_run(pending=(1, 2)))


def test_a_run_has_a_repr_inside_a_transformation():
    seen = []
    jax.jit(lambda run: seen.append(repr(run)) or run.samples)(small_run())
    assert "15 parameters" in seen[0]


def test_tables_are_html_in_a_notebook(monkeypatch):
    monkeypatch.setattr(Comparison, "methods", lambda self: {"a<b": [{"curve": [3.0, 2.0, 1.0], "samples": 3}]})
    monkeypatch.setattr(Comparison, "table", lambda self: "| method |\n|---|\n| uoro |\n\nnote")
    page = Comparison.__new__(Comparison)._repr_html_()
    assert "<td>uoro</td>" in page
    assert "<td>a&lt;b</td>\n<td>█▅▁</td>" in page


def test_a_diagnosis_shows_cosines_on_one_scale():
    none = Value(0.0, 0.0)
    spans = [Span(end, none, none, Value(cosine, 0.1)) for end, cosine in ((5, 1.0), (10, 0.5), (15, -0.2))]
    finding = Finding("a<b", 8, 15, 3, none, none, Value(0.9, 0.0), spans)
    page = Diagnosis([finding], "rtrl", moving=False)._repr_html_()
    assert "<td>a&lt;b</td>" in page
    assert "<td>a&lt;b, hidden 8</td>\n<td>█▅▁</td>" in page


def test_the_repr_of_an_ahead_run_counts_pending_rows():
    cell = cells.rnn(1, 2, 1, symbols=False)
    ahead = AheadLearner(
        online(bptt(cell.transition, known_squared_error), adam(1e-3)), known_squared_error, steps=(2,)
    )
    row = np.zeros(1, np.float32)
    start = ahead.learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    run = ahead.init(start, row, row, row)
    assert repr(run) == ("AheadRun(samples=0, up to 2 pending rows, Run(samples=0, steps=0, skipped=0, 11 parameters))")
