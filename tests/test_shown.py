"""What people see when they display a run or a table."""

import jax
import jax.numpy as jnp

from norewind.instruments.compare import Comparison
from norewind.instruments.diagnosis import Diagnosis
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
    for kind in (Comparison, Diagnosis):
        monkeypatch.setattr(kind, "table", lambda self: "| method |\n|---|\n| uoro |\n\nnote")
        assert "<td>uoro</td>" in kind.__new__(kind)._repr_html_()
    assert "a&lt;b █▅▁" in Comparison.__new__(Comparison)._repr_html_()
