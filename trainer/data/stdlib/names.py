"""The public names of the standard library and the docstrings that document each.

A name stands where a user meets it, not where it is defined: `asyncio.run`, not `asyncio.runners.run`;
`os.path.join`, not `posixpath.join`; `csv.reader`, though it is `_csv` that defines it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set

from trainer.data.stdlib.modules import STAR, Import, Module, is_public, read_modules

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
    passed_on: set[_Place] = set()  # from where another module offers them
    for module in public:
        for name, origins in _offered(module.name, modules).items():
            for origin in origins:
                offering[origin].append((module.name, name))
        passed_on |= {place for _, place, _ in _passed_on(module, modules)}
    for (source_name, defined), places in sorted(offering.items()):  # sets know no order
        nearest = [place for place in places if place not in passed_on and not _is_below(place, places)]
        for below, docstring in modules[source_name].definitions[defined]:
            for module_name, name in nearest:
                docstrings[f"{module_name}.{name}{below}"].append(docstring)
    return {name: docstrings[name] for name in sorted(docstrings) if docstrings[name]}


def _is_below(place: _Place, others: list[_Place]) -> bool:
    return any(place[0].startswith(f"{module}.") for module, _ in others)


def _offered(name: str, modules: _Modules, importing: frozenset[str] = frozenset()) -> dict[str, set[_Place]]:
    """The names that a module defines or passes on, and where each is defined."""
    offered: dict[str, set[_Place]] = defaultdict(set)
    for defined in modules[name].definitions:
        offered[defined].add((name, defined))
    for name_here, _, origins in _passed_on(modules[name], modules, importing):
        offered[name_here] |= origins
    return offered


def _passed_on(
    module: Module, modules: _Modules, importing: frozenset[str] = frozenset()
) -> Iterator[tuple[str, _Place, set[_Place]]]:
    """What a module imports for its users: each name here, the place it comes from, and where it is defined."""
    for statement in module.imports:
        source = modules.get(statement.source)
        if source is None or source.name in importing:  # not the library's, or a circle
            continue
        there = _offered(source.name, modules, importing | {module.name})
        for name_here, name_there in _for_users(module, statement, source, there.keys()):
            yield name_here, (source.name, name_there), there[name_there]


def _for_users(module: Module, statement: Import, source: Module, there: Set[str]) -> Iterator[tuple[str, str]]:
    """The (name here, name there) that an import offers to the users of `module`, less what it merely uses."""
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
