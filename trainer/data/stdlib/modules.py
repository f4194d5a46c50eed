"""The modules of the standard library, with the docstrings of their definitions.

Python modules are parsed, never imported. C modules are imported, because only the imported module has docstrings. The
result depends only on the version of the interpreter, not on modules that a program has imported or changed.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import inspect
import sys
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

STAR = "*"

_SKIPPED = {
    *("test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "_vendor"),
    "distutils",  # Python 3.12 does not have this module any more
    *("antigravity", "this"),  # modules that are jokes
    "readline",  # importing it may write escape codes to the terminal
}
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class Import:
    """`from source import name as alias`.

    For `from source import *`, `name` and `alias` are `STAR`. For `import source as alias`, `name` is `STAR`.
    """

    source: str
    name: str
    alias: str


@dataclass
class Module:
    name: str
    docstring: str | None = None
    in_c: bool = False
    # Public top-level name -> pairs (path, docstring). The path is "" for the name itself and ".method" for a member.
    definitions: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    imports: list[Import] = field(default_factory=list)
    exported: set[str] = field(default_factory=set)  # the names in `__all__`


def read_modules() -> dict[str, Module]:
    """Return, by name, all Python modules, and the C modules that are public or that a Python module imports."""
    with warnings.catch_warnings(action="ignore"):  # invalid escapes, deprecated modules
        modules = {module.name: module for module in _python_modules()}
        imported = {statement.source for module in modules.values() for statement in module.imports}
        public = {name for name in sys.stdlib_module_names - _SKIPPED if is_public(name)}
        for name in sorted(_c_module_names() & (public | imported)):
            if module := _import_c_module(name):
                modules[name] = module
    return modules


def is_public(name: str) -> bool:
    return not any(part.startswith("_") for part in name.split("."))


def _python_modules() -> Iterator[Module]:
    root = Path(sysconfig.get_path("stdlib"))
    for top in sorted(root.iterdir()):
        if top.stem not in sys.stdlib_module_names:  # skip for example site-packages
            continue
        for path in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
            parts = path.relative_to(root).with_suffix("").parts
            if path.suffix != ".py" or _SKIPPED.intersection(parts):
                continue
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):
                continue
            is_package = parts[-1] == "__init__"
            yield _parse_module(".".join(parts[:-1] if is_package else parts), is_package, tree)


def _parse_module(name: str, is_package: bool, tree: ast.Module) -> Module:
    module = Module(name, ast.get_docstring(tree))
    for statement in _statements(tree):
        if isinstance(statement, _Definition):
            if is_public(statement.name):
                module.definitions[statement.name] += _docstrings(statement, "")
        elif isinstance(statement, ast.ImportFrom):
            source = _import_source(statement, name, is_package)
            module.imports += [Import(source, item.name, item.asname or item.name) for item in statement.names]
        elif isinstance(statement, ast.Import):
            module.imports += [Import(item.name, STAR, item.asname) for item in statement.names if item.asname]
        elif any(isinstance(node, ast.Name) and node.id == "__all__" for node in ast.walk(statement)):
            constants = [node.value for node in ast.walk(statement) if isinstance(node, ast.Constant)]
            module.exported |= {value for value in constants if isinstance(value, str)}
    return module


def _import_source(statement: ast.ImportFrom, name: str, is_package: bool) -> str:
    if not statement.level:
        return statement.module or ""
    # One dot is the module's own package; each further dot is one package up.
    up = statement.level - is_package
    package = name.split(".")[: -up or None]
    return ".".join([*package, *filter(None, [statement.module])])


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a module or class body, including those in the branches of `if` and `try`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If | ast.Try | ast.ExceptHandler):
            yield from _statements(child)
        elif isinstance(child, ast.stmt):
            yield child


def _docstrings(definition: _Definition, path: str) -> Iterator[tuple[str, str]]:
    if docstring := ast.get_docstring(definition):
        yield path, docstring
    if isinstance(definition, ast.ClassDef):
        for member in _statements(definition):
            if isinstance(member, _Definition) and is_public(member.name):
                yield from _docstrings(member, f"{path}.{member.name}")


def _c_module_names() -> set[str]:
    folder = Path(sysconfig.get_config_var("DESTSHARED") or sysconfig.get_path("platstdlib"))
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    extensions = {path.name.partition(".")[0] for path in folder.glob("*") if path.name.endswith(suffixes)}
    return extensions | set(sys.builtin_module_names)


def _import_c_module(name: str) -> Module | None:
    try:
        imported = importlib.import_module(name)
    except ImportError:  # the module needs a library that this platform lacks
        return None
    module = Module(name, imported.__doc__, in_c=True)
    contents = vars(imported)
    for key in sorted(filter(is_public, contents)):
        value = contents.get(f"__{key}__", contents[key])  # `sys` keeps originals of its hooks so
        if inspect.isbuiltin(value) and value.__name__ == key:  # another name means an alias
            module.definitions[key] = _own_docstring(value, "")
        elif inspect.isclass(value) and (value.__module__ == "builtins") == (name == "builtins"):
            module.definitions[key] = _own_docstring(value, "")
            for member in sorted(filter(is_public, vars(value))):
                described = vars(value)[member]
                if inspect.isroutine(described) or inspect.isdatadescriptor(described):
                    module.definitions[key] += _own_docstring(described, f".{member}")
    return module


def _own_docstring(value: object, path: str) -> list[tuple[str, str]]:
    docstring = value.__doc__
    return [(path, docstring)] if isinstance(docstring, str) else []
