"""The public names of the standard library and the docstrings that document each.

A name stands where a user meets it, not where it is defined: `asyncio.run`, not `asyncio.runners.run`;
`os.path.join`, not `posixpath.join`; `csv.reader`, though it is `_csv` that defines it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from trainer.stdlib.modules import STAR, Import, Module, is_public, read_modules

_Modules = dict[str, Module]
_Place = tuple[str, str]  # a module, and a name in it


def read_docstrings() -> dict[str, list[str]]:
    """The docstrings of the standard library by public qualified name, sorted by name."""
    modules = read_modules()
    public = [module for module in modules.values() if is_public(module.name)]

    docstrings: dict[str, list[str]] = defaultdict(list)
    for module in public:
        borrowed = [statement.source for statement in module.imports if statement.name == "__doc__"]
        for source in filter(None, map(modules.get, [module.name, *borrowed])):
            docstrings[module.name] += filter(None, [source.docstring])

    offering: dict[_Place, list[_Place]] = defaultdict(list)
    for module in public:
        for name, origins in _offered(module.name, modules).items():
            for origin in origins:
                offering[origin].append((module.name, name))
    for (source_name, defined), places in sorted(offering.items()):  # sets know no order
        nearest = list(_nearest(source_name, places))
        for below, docstring in modules[source_name].definitions[defined]:
            for module_name, name in nearest:
                docstrings[f"{module_name}.{name}{below}"].append(docstring)
    return {name: docstrings[name] for name in sorted(docstrings) if docstrings[name]}


def _offered(name: str, modules: _Modules, importing: frozenset[str] = frozenset()) -> dict[str, set[_Place]]:
    """The names that a module defines or passes on, and where each is defined."""
    module = modules[name]
    offered: dict[str, set[_Place]] = defaultdict(set)
    for defined in module.definitions:
        offered[defined].add((name, defined))
    for statement in module.imports:
        if statement.source not in modules or statement.source in importing:  # not the library's, or a circle
            continue
        there = _offered(statement.source, modules, importing | {name})
        for name_here, name_there in _passed_on(module, statement, modules[statement.source], there):
            offered[name_here] |= there[name_there]
    return offered


def _passed_on(
    module: Module, statement: Import, source: Module, there: dict[str, set[_Place]]
) -> Iterator[tuple[str, str]]:
    """What an import offers to the users of `module`, as (name here, name there), leaving what it merely uses."""
    hidden = not is_public(source.name) or source.name.startswith(f"{module.name}.")
    if statement.alias == STAR:
        for name in there.keys() & (source.exported or there.keys()):
            if hidden or source.in_c or name in module.exported:
                yield name, name
    elif statement.name == STAR and statement.alias in module.exported:
        for name in there:
            yield f"{statement.alias}.{name}", name
    elif hidden and statement.name in there and statement.alias in (module.exported or {statement.name}):
        yield statement.alias, statement.name


def _nearest(source: str, places: list[_Place]) -> Iterator[_Place]:
    """The places that offer a definition, less its own where another does, less those below another."""
    passed_on = [place for place in places if place[0] != source] or places
    for module, name in passed_on:
        if not any(module.startswith(f"{other}.") for other, _ in passed_on):
            yield module, name
