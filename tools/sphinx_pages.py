"""What docs/conf.py needs: pages from the public names and from files outside docs/, links, docstrings for Sphinx."""

import base64
import inspect
import json
import re
from pathlib import Path
from types import ModuleType

REPOSITORY = "https://github.com/norewind/norewind"
# Files that the site shows as pages of its own, with their titles.
COPIES = {
    "README.md": "A tour",
    "CONTRIBUTING.md": "Contributing",
    "CHANGELOG.md": "Changelog",
    "results/bench/table.md": "Benchmark",
    "results/defaults/table.md": "Defaults",
    "results/paper/table.md": "The paper's table",
    "results/real-data/table.md": "Real data: the tables",
}
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)#\s]+)(#[^)]*)?\)")


def kind_of(name: str, value: object, package: ModuleType) -> str:
    """The page of the reference that a public name belongs to; a module has one of its own."""
    if inspect.ismodule(value):
        return f"norewind.{name}"
    if inspect.isclass(value):
        return "Errors" if issubclass(value, Exception) else "Types"
    if name in package.estimators.__all__:
        return "Methods"
    return "Combinators" if getattr(value, "__module__", "") == package.combinators.__name__ else "Functions"


def write_api(folder: Path, package: ModuleType) -> None:
    """A page for every kind of public name, and an index of them."""
    kinds: dict[str, list[str]] = {kind: [] for kind in ("Methods", "Combinators", "Functions", "Types", "Errors")}
    values = {name: getattr(package, name) for name in package.__all__}
    modules = {name: getattr(value, "__all__", ()) for name, value in values.items() if inspect.ismodule(value)}
    for name, value in values.items():
        homes = [module for module, names in modules.items() if name in names]
        entry = f":any:`norewind.{homes[0]}.{name}`\n" if homes else _directive(name, value)
        kinds.setdefault(kind_of(name, value, package), []).append(entry)
    pages = {kind: kind.removeprefix("norewind.").lower() for kind, entries in kinds.items() if entries}
    for kind, page in pages.items():
        _write(folder / f"{page}.rst", _titled(kind, "\n".join(kinds[kind])))
    index = "Everything that ``import norewind`` offers. What is listed here is public (see :doc:`/stability`).\n"
    contents = "\n.. toctree::\n   :maxdepth: 2\n\n" + "".join(f"   {page}\n" for page in pages.values())
    _write(folder / "index.rst", _titled("Reference", index + contents))
    for path in set(folder.glob("*.rst")) - {folder / f"{page}.rst" for page in ("index", *pages.values())}:
        path.unlink()  # of a name that is no longer public


def _directive(name: str, value: object) -> str:
    if inspect.ismodule(value):
        imported = "   :imported-members:\n" if hasattr(value, "__all__") else ""
        return f".. automodule:: norewind.{name}\n   :members:\n{imported}"
    if inspect.isclass(value):
        directive = "autoexception" if issubclass(value, Exception) else "autoclass"
        return f".. {directive}:: norewind.{name}\n   :members:\n"
    return f".. autofunction:: norewind.{name}\n" if callable(value) else f".. autodata:: norewind.{name}\n"


def _titled(title: str, text: str) -> str:
    return f"{title}\n{'=' * len(title)}\n\n{text}"


def _write(path: Path, text: str) -> None:
    """Only if it changed, so that Sphinx builds no more than it must."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def page_of(path: str) -> str:
    """Where the site has a copy: results/bench/table.md becomes bench-table."""
    return path.removeprefix("results/").removesuffix(".md").replace("/", "-").lower()


def write_copies(root: Path, folder: Path) -> None:
    for path, title in COPIES.items():
        text = (root / path).read_text(encoding="utf-8")
        text = re.sub(r"\A# .*\n", "", text)
        _write(folder / f"{page_of(path)}.md", f"# {title}\n\n{_linked(root, (root / path).parent, text)}")


def write_notebooks(root: Path, folder: Path) -> None:
    """A page for every notebook in docs/notebooks, with the outputs that are saved in it: nothing is run."""
    for path in sorted((root / "docs/notebooks").glob("*.ipynb")):
        parts, images = notebook_page(json.loads(path.read_text(encoding="utf-8"))["cells"], path.stem)
        for name, content in images.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        source = f"This page is a notebook: {REPOSITORY}/blob/main/docs/notebooks/{path.name}\n"
        _write(folder / f"{path.stem}.md", _linked(root, path.parent, "\n".join([*parts, source])))


def notebook_page(cells: list[dict], name: str) -> tuple[list[str], dict[str, bytes]]:
    """The parts of a page in Markdown, and the images that they show.

    >>> output = {"output_type": "stream", "text": ["2\\n"]}
    >>> notebook_page([{"cell_type": "code", "source": ["print(1 + 1)"], "outputs": [output]}], "sum")
    (['```python\\nprint(1 + 1)\\n```\\n', '```none\\n2\\n```\\n'], {})
    """
    parts, images = [], {}
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source + "\n")
            continue
        parts.append(f"```python\n{source}\n```\n")
        for output in cell["outputs"]:
            shown = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in shown:
                image = f"{name}-{len(images) + 1}.png"
                images[image] = base64.b64decode("".join(shown["image/png"]))
                parts.append(f"![]({image})\n")
            elif "text/html" in shown:
                parts.append(f"```{{raw}} html\n{''.join(shown['text/html'])}\n```\n")
            else:
                parts.append(f"```none\n{''.join(shown['text/plain']).rstrip()}\n```\n")
    return parts, images


def link_pages(root: Path, name: str, source: list[str]) -> None:
    """Links of a page in docs/ to files outside of it. (The copies have theirs from `write_copies`.)"""
    if "/" not in name:
        source[0] = _linked(root, root / "docs", source[0])


def _linked(root: Path, folder: Path, text: str) -> str:
    """Links that work on the site: to pages, images, or files in the repository. Sphinx reports a wrong one."""

    def link(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        path = (folder / target).resolve()
        if "://" in target or not path.is_relative_to(root) or not path.exists():
            return match[0]
        inside = path.relative_to(root).as_posix()
        if inside in COPIES:
            place = f"/project/{page_of(inside)}.md"
        elif path.suffix == ".ipynb" and path.parent == root / "docs/notebooks":
            place = f"/project/{path.stem}.md"
        elif inside.startswith("docs/"):
            place = inside.removeprefix("docs")
        elif label.startswith("!") or path.suffix == ".html":
            place = f"/../{inside}"
        else:
            place = f"{REPOSITORY}/blob/main/{inside}"
        return f"{label}({place}{anchor})"

    return LINK.sub(link, text)


def to_rst(lines: list[str]) -> None:
    """A docstring in Markdown (code in single backticks or indented by four) for Sphinx, in place.

    >>> lines = ["Many `a`s and `b`:", "", "    b = `c`", "", ">>> `d`"]
    >>> to_rst(lines)
    >>> lines
    ['Many ``a``\\\\ s and ``b``:', '', '::', '', '    b = `c`', '', '>>> `d`']
    """
    paragraphs = re.split(r"\n{2,}", "\n".join(lines))
    done, is_code = [], False
    for paragraph in paragraphs:
        was_code, is_code = is_code, paragraph.startswith("    ")
        if is_code and not was_code:
            done.append("::")
        if not is_code and not paragraph.startswith(">>>"):
            paragraph = re.sub(r"`([^`]+)`(\w?)", _code, paragraph)
        done.append(paragraph)
    lines[:] = "\n\n".join(done).split("\n")


def _code(match: re.Match[str]) -> str:
    # A letter right after code needs a mark in between.
    return f"``{match[1]}``" + (f"\\ {match[2]}" if match[2] else "")


def signature_text(signature: str | None) -> str | None:
    """With names for the functions that are defaults, which Sphinx would otherwise fail to parse.

    >>> signature_text("(x=<function one at 0x7f>)")
    '(x=one)'
    """
    return signature and re.sub(r"<function (\w+)[^>]*>", r"\1", signature)


def is_field(value: object) -> bool:
    """Whether it is a field of a named tuple: the signature shows it, and its docstring says nothing."""
    return type(value).__name__ == "_tuplegetter"
