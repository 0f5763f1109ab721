"""Helpers of docs/conf.py: pages of the public names and of files outside docs/, links, and docstrings for Sphinx."""

import base64
import inspect
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

REPOSITORY = "https://github.com/norewind/norewind"
# Files outside docs/ that become pages of the site, with their titles.
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


def write_api(folder: Path, package: ModuleType) -> None:
    """A page for the package's own names, one for each of its public modules, and an index of them.

    Args:
        folder: where the pages are written; other pages in it are removed.
        package: norewind. A name that one of its modules also exports is documented there.
    """
    values = {name: getattr(package, name) for name in package.__all__}
    modules = {name: value for name, value in values.items() if inspect.ismodule(value)}
    homes = {
        name: f"norewind.{home}.{name}"
        for home, module in modules.items()
        for name in public_names(module)
        if name in values and getattr(module, name) is values[name]
    }
    own = [_directive(f"norewind.{name}", values[name]) for name in values.keys() - modules.keys() - homes.keys()]
    links = [f"- ``norewind.{name}``: see :any:`{home}`" for name, home in sorted(homes.items())]
    pages = {"names": _titled("norewind", "\n".join([*sorted(own), *links, ""]))}
    for name, module in modules.items():
        entries = [_directive(f"norewind.{name}.{public}", getattr(module, public)) for public in public_names(module)]
        pages[name] = _titled(f"norewind.{name}", "\n".join([f".. automodule:: {module.__name__}\n", *entries]))
    introduction = (
        "Everything that ``import norewind`` provides, and the names that its subpackages export. "
        "What is listed here is public (see :doc:`/stability`). :doc:`core` has the toolkit for writing an estimator.\n"
    )
    contents = "\n.. toctree::\n   :maxdepth: 2\n\n" + "".join(f"   {page}\n" for page in pages)
    pages["index"] = _titled("Reference", introduction + contents)
    for page, text in pages.items():
        _write(folder / f"{page}.rst", text)
    for path in set(folder.glob("*.rst")) - {folder / f"{page}.rst" for page in pages}:
        path.unlink()  # of a name that is no longer public


def public_names(module: ModuleType) -> list[str]:
    """The names in `__all__`, which may be imported when they are first used; otherwise those defined in the module."""

    def is_public(name: str, value: object) -> bool:
        return not name.startswith("_") and getattr(value, "__module__", None) == module.__name__

    return getattr(module, "__all__", None) or [name for name, value in vars(module).items() if is_public(name, value)]


def _directive(name: str, value: object) -> str:
    if value is Any:  # its own docstring explains something else
        return f".. py:data:: {name}\n\n   Any pytree.\n"
    if inspect.isclass(value):
        directive = "autoexception" if issubclass(value, Exception) else "autoclass"
        return f".. {directive}:: {name}\n   :members:\n"
    return f".. {'autofunction' if inspect.isroutine(value) else 'autodata'}:: {name}\n"


def _titled(title: str, text: str) -> str:
    return f"{title}\n{'=' * len(title)}\n\n{text}"


def _write(path: Path, text: str) -> None:
    """Write a file only if it has changed, so that Sphinx rebuilds no more than necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def page_of(path: str) -> str:
    """The page that a file is copied to: results/bench/table.md becomes bench-table."""
    return path.removeprefix("results/").removesuffix(".md").replace("/", "-").lower()


def write_copies(root: Path, folder: Path) -> None:
    """Write a page for each of the files in `COPIES`.

    Args:
        root: the folder of the project.
        folder: the folder for the pages.
    """
    for path, title in COPIES.items():
        text = (root / path).read_text(encoding="utf-8")
        text = re.sub(r"\A# .*\n", "", text)
        _write(folder / f"{page_of(path)}.md", f"# {title}\n\n{_linked(root, (root / path).parent, text)}")


def write_notebooks(root: Path, folder: Path) -> None:
    """Write a page for every notebook in docs/notebooks, with its saved outputs. Nothing is run.

    Args:
        root: the folder of the project.
        folder: the folder for the pages.
    """
    for path in sorted((root / "docs/notebooks").glob("*.ipynb")):
        parts, images = notebook_page(json.loads(path.read_text(encoding="utf-8"))["cells"], path.stem)
        for name, content in images.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        source = f"This page is a notebook: {REPOSITORY}/blob/main/docs/notebooks/{path.name}\n"
        _write(folder / f"{path.stem}.md", _linked(root, path.parent, "\n".join([*parts, source])))


def notebook_page(cells: list[dict], name: str) -> tuple[list[str], dict[str, bytes]]:
    """Convert a notebook to Markdown.

    Args:
        cells: the cells of the notebook.
        name: the prefix of the names of images.

    Returns:
        The parts of the page, and the images by file name.

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
    """Adapt the links of a page in docs/ to files outside of it. (Pages that are written here have them already.)

    Args:
        root: the folder of the project.
        name: the name of the page.
        source: the text of the page, changed in place.
    """
    if not name.startswith(("api/", "project/")):
        source[0] = _linked(root, (root / "docs" / name).parent, source[0])


def _linked(root: Path, folder: Path, text: str) -> str:
    """Rewrite links so that they work on the site: to pages, images, or files in the repository."""

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
    """Convert a docstring from Markdown (code in single backticks or indented by four) for Sphinx, in place.

    >>> lines = ["Many `a`s and `b | c`, |x|:", "", "    b = `c`", "", ">>> `d`"]
    >>> to_rst(lines)
    >>> lines
    ['Many ``a``\\\\ s and ``b | c``, \\\\|x\\\\|:', '', '::', '', '    b = `c`', '', '>>> `d`']
    """
    paragraphs = re.split(r"\n{2,}", "\n".join(lines))
    done, is_code = [], False
    for paragraph in paragraphs:
        was_code, is_code = is_code, paragraph.startswith("    ")
        if is_code and not was_code:
            done.append("::")
        if not is_code and not paragraph.startswith(">>>"):
            # Bars outside code are absolute values, not substitutions.
            paragraph = re.sub(r"`([^`]+)`(\w?)|\|", _code, paragraph)
        done.append(paragraph)
    lines[:] = "\n\n".join(done).split("\n")


def _code(match: re.Match[str]) -> str:
    if match[1] is None:
        return "\\|"
    # A letter right after code must be separated from it.
    return f"``{match[1]}``" + (f"\\ {match[2]}" if match[2] else "")


def signature_text(signature: str | None) -> str | None:
    """Replace functions that are default values by their names, since Sphinx cannot parse their representation.

    >>> signature_text("(x=<function one at 0x7f>)")
    '(x=one)'
    """
    return signature and re.sub(r"<function (\w+)[^>]*>", r"\1", signature)


def is_field(value: object) -> bool:
    """Whether a value is a field of a named tuple, which the signature already shows."""
    return type(value).__name__ == "_tuplegetter"
