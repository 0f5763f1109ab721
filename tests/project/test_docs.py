"""Checks of the site and the metadata that need no build."""

import inspect
import re
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import norewind
from tools.sphinx_pages import LINK, public_names, write_api
from tools.stamp import ROOT, pages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("page", [*pages(ROOT), ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    for _, target, _ in LINK.findall(page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_gallery_shows_every_figure_with_a_command():
    gallery = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    folders = ("docs/images", "results/paper/figures", "results/bench", "results/real-data", "results/memory")
    figures = [path for folder in folders for path in (ROOT / folder).glob("*.png")]
    assert len(figures) >= 10
    for path in figures:
        shown = path.relative_to(ROOT).as_posix().removeprefix("docs/")
        assert re.search(rf"\{{figure}} (\.\./)?{re.escape(shown)}\n", gallery), path
    for section in gallery.split("\n## ")[1:]:
        assert re.search(r"^    \S", section, re.MULTILINE), section


def test_every_public_name_is_in_the_reference(tmp_path):
    write_api(tmp_path, norewind)
    text = "\n".join(path.read_text() for path in tmp_path.glob("*.rst"))
    for name in norewind.__all__:
        value = getattr(norewind, name)
        if inspect.ismodule(value):
            for public in public_names(value):
                assert f":: norewind.{name}.{public}\n" in text, public
        else:
            assert re.search(rf"(:: |``)norewind\.{name}(\n|``)", text), name


def test_every_public_function_describes_its_arguments():
    """They have a section that IDEs show; ruff checks that it is complete."""
    packages = [norewind, *(value for name in norewind.__all__ if inspect.ismodule(value := getattr(norewind, name)))]
    for package in packages:
        for name in public_names(package):
            value = getattr(package, name)
            if inspect.isfunction(value) and len(inspect.signature(value).parameters) > 1:
                assert "Args:" in (value.__doc__ or ""), f"{package.__name__}.{name}"


def test_a_new_name_appears_and_an_old_one_goes(tmp_path):
    def package(**names):
        return SimpleNamespace(__all__=list(names), **names)

    write_api(tmp_path, package(old=ValueError))
    assert ".. autoexception:: norewind.old" in (tmp_path / "names.rst").read_text()
    module = ModuleType("module")
    module.__dict__.update(__all__=["late"], __getattr__=lambda name: len)
    write_api(tmp_path, package(new=lambda: None, late=len, module=module))
    assert ".. autofunction:: norewind.new" in (tmp_path / "names.rst").read_text()
    assert "``norewind.late``: see :any:`norewind.module.late`" in (tmp_path / "names.rst").read_text()
    assert ".. autofunction:: norewind.module.late" in (tmp_path / "module.rst").read_text()
    write_api(tmp_path, package(new=lambda: None))
    assert {path.name for path in tmp_path.iterdir()} == {"names.rst", "index.rst"}


def test_files_named_on_the_pages_exist():
    named = re.compile(r"\b((?:norewind|tests|tools|benchmarks|examples)/[\w/]+\.(?:py|sh|c))\b")
    for page in [*pages(ROOT), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for path in named.findall(page.read_text(encoding="utf-8")):
            assert (ROOT / path).exists() or path.endswith("/yours.py"), f"{page.name}: {path}"


def test_the_metadata_agrees():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {norewind.__version__}\n" in citation
    assert f"\nlicense: {PROJECT['license']}\n" in citation
    assert f"\nrepository-code: {PROJECT['urls']['Source']}\n" in citation
    assert (Path(norewind.__file__).parent / "py.typed").exists()
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    (tested,) = re.findall(r"python-version: \[(.*)\]", (ROOT / ".github/workflows/ci.yml").read_text())
    assert re.findall(r"[\d.]+", tested) == supported
