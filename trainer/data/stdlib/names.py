"""The public names of the standard library, each with its docstrings.

A name is the path that users import, not the path where the object is defined: `asyncio.run`, not
`asyncio.runners.run`; `os.path.join`, not `posixpath.join`; `csv.reader`, not `_csv.reader`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set

from recollect.trainer.data.stdlib.modules import STAR, Import, Module, is_public, read_modules

_Modules = dict[str, Module]
_Place = tuple[str, str]  # the name of a module, and a name in this module


def read_docstrings() -> dict[str, list[str]]:
    """The docstrings of the standard library by public name, sorted by name."""
    modules = read_modules()
    public = [module for module in modules.values() if is_public(module.name)]

    docstrings: dict[str, list[str]] = defaultdict(list)
    for module in public:
        borrowed = [statement.source for statement in module.imports if statement.name == "__doc__"]
        for source in filter(None, map(modules.get, [module.name, *borrowed])):
            docstrings[module.name] += filter(None, [source.docstring])

    public_places: dict[_Place, list[_Place]] = defaultdict(list)  # definition -> places with a public name for it
    reexported: set[_Place] = set()  # places that another module re-exports
    for module in public:
        for name, origins in _public_names(module.name, modules).items():
            for origin in origins:
                public_places[origin].append((module.name, name))
        reexported |= {place for _, place, _ in _reexports(module, modules)}
    for (source_name, defined), places in sorted(public_places.items()):  # sorted, because sets have no order
        nearest = [place for place in places if place not in reexported and not _is_below(place, places)]
        for below, docstring in modules[source_name].definitions[defined]:
            for module_name, name in nearest:
                docstrings[f"{module_name}.{name}{below}"].append(docstring)
    return {name: docstrings[name] for name in sorted(docstrings) if docstrings[name]}


def _is_below(place: _Place, others: list[_Place]) -> bool:
    return any(place[0].startswith(f"{module}.") for module, _ in others)


def _public_names(name: str, modules: _Modules, importing: frozenset[str] = frozenset()) -> dict[str, set[_Place]]:
    """Return the names that a module defines or re-exports, each with the places of its definitions."""
    names: dict[str, set[_Place]] = defaultdict(set)
    for defined in modules[name].definitions:
        names[defined].add((name, defined))
    for name_here, _, origins in _reexports(modules[name], modules, importing):
        names[name_here] |= origins
    return names


def _reexports(
    module: Module, modules: _Modules, importing: frozenset[str] = frozenset()
) -> Iterator[tuple[str, _Place, set[_Place]]]:
    """Yield the names that a module re-exports: (name in the module, imported place, places of the definitions)."""
    for statement in module.imports:
        source = modules.get(statement.source)
        if source is None or source.name in importing:  # not in the standard library, or part of an import cycle
            continue
        there = _public_names(source.name, modules, importing | {module.name})
        for name_here, name_there in _offered_names(module, statement, source, there.keys()):
            yield name_here, (source.name, name_there), there[name_there]


def _offered_names(module: Module, statement: Import, source: Module, there: Set[str]) -> Iterator[tuple[str, str]]:
    """Yield the names that an import statement of `module` re-exports: (name in `module`, name in `source`).

    Names that the module imports only for its own use are left out.
    """
    hidden = not is_public(source.name) or source.name.startswith(f"{module.name}.")
    if statement.alias == STAR:
        for name in there & (source.exported or there):
            if hidden or source.in_c or name in module.exported:
                yield name, name
    elif statement.name == STAR and statement.alias in module.exported:
        for name in there:
            yield f"{statement.alias}.{name}", name
    elif hidden and statement.name in there and statement.alias in (module.exported or {statement.name}):
        yield statement.alias, statement.name
