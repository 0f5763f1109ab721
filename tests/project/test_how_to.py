"""The code of the how-to pages runs as it is printed, top to bottom."""

import re

import jax
import pytest

from tools.stamp import ROOT

PAGES = sorted((ROOT / "docs/how-to").glob("*.md"))
QUICK = ("checkpoints", "episodes")


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.stem, marks=() if page.stem in QUICK else pytest.mark.slow) for page in PAGES]
)
def test_the_code_runs(page):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    names: dict = {"__name__": page.stem}
    precision = jax.config.jax_enable_x64
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)
    assert jax.config.jax_enable_x64 == precision


def test_every_page_is_in_the_index():
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert f"how-to/{page.stem}" in index, page.name
