"""What mkdocs builds besides the files of docs/: a hook, named in mkdocs.yml.

The first page is README.md; `commands.md` is made from the parser and `functions.md` from the
docstrings of the API. Links of pages to files of the repository lead to its address.
"""

import argparse
import inspect
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = "96"
LINK = re.compile(r"(?<=\]\()([^)\s:#]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    for name, lines in (("commands.md", _commands()), ("functions.md", _functions())):
        files.append(File.generated(config, name, content="\n".join(lines)))
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Let links to what is no page lead to the repository; raises PluginError for what is not
    there."""
    folder = "" if page.file.src_uri == "index.md" else "docs"

    def target(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found[1]))
        if path.startswith("docs/"):
            return path.removeprefix("docs/")
        if not (ROOT / path).exists():
            raise PluginError(f"{page.file.src_uri}: {found[1]} is not there")
        return f"{config.repo_url}/blob/main/{path}"

    return LINK.sub(target, markdown)


def _commands() -> Iterator[str]:
    from meshwright.cli import make_parser

    os.environ["COLUMNS"] = COLUMNS
    yield "# Commands\n\nWhat `--help` of each command says.\n"
    for parser in _parsers(make_parser()):
        yield f"## {parser.prog}\n\n```text\n{parser.format_help()}```\n"


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _parsers(below)


def _functions() -> Iterator[str]:
    import meshwright
    from meshwright.api import EXPORTS

    yield "# Python's functions\n\nWhat `import meshwright` gives, by its docstrings.\n"
    for name in EXPORTS:
        thing = getattr(meshwright, name)
        yield f"## {name}\n\n{_described(name, thing)}"
        for method, function in vars(thing).items() if inspect.isclass(thing) else ():
            if not method.startswith("_") and inspect.isroutine(function):
                inner = getattr(function, "__func__", function)
                yield f"### {name}.{method}\n\n{_described(method, inner)}"


def _described(name: str, thing: Any) -> str:
    is_error = inspect.isclass(thing) and issubclass(thing, Exception)
    signature = "" if is_error else str(inspect.signature(thing)).replace(" -> None", "")
    return f"```python\n{name}{signature}\n```\n\n```text\n{inspect.getdoc(thing) or ''}\n```\n"
