"""The architecture: which part may import which, and the libraries that each part must work without."""

from __future__ import annotations

import ast
import glob
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recollect.core import extras
from tests.tiny_runs import write_tiny_encoder

REPOSITORY = Path(__file__).parents[1]
# What each part of `recollect` may import, beside itself. Nothing is below `core`, and nothing above `extras`.
MAY_IMPORT: dict[str, set[str]] = {"core": set(), "store": {"core"}}
MAY_IMPORT["edits"] = {"core", "store"}
MAY_IMPORT["model"] = {"core", "store", "edits"}
MAY_IMPORT["service"] = MAY_IMPORT["bulk"] = {"core", "store", "edits", "model"}
MAY_IMPORT["trainer"] = {"core"}
MAY_IMPORT["index_builder"] = {"core", "store", "edits", "model", "trainer"}
MAY_IMPORT["cli"] = {*MAY_IMPORT}
MAY_IMPORT["extras"] = {*MAY_IMPORT, "recollect"}
# The modules of the Python API: recollect/__init__.py, __main__.py and sklearn.py.
MAY_IMPORT["recollect"] = {*MAY_IMPORT} - {"extras"}
# The public name of an extra imports it, because users import the name.
PUBLIC_NAMES = {"recollect.sklearn": "recollect.extras.sklearn"}

TORCH = {"torch", "transformers", "safetensors", "scipy", "onnx", "onnxscript"}
WEB = {"fastapi", "starlette", "uvicorn"}
# Libraries that a part works without. They are not even imported inside a function.
NEVER_IMPORTS: dict[str, set[str]] = {
    **dict.fromkeys(("core", "store", "edits", "model", "bulk"), TORCH | WEB),
    "service": TORCH,
    "trainer": {*WEB, "structlog"},
    "index_builder": WEB,
    "cli": {"torch", "fastapi"},
    "recollect": {"torch", "fastapi"},
    "extras": set(),
}
# Libraries that run code from the files that they read.
UNSAFE = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal"}
# Libraries of extras that are imported when a user asks for them.
OPTIONAL = {"pyarrow", "pymilvus", "grpc", "ray", "boto3"}

# The beginning of a program in which the modules in argv[1] cannot be imported.
BLOCKED = """
import importlib, sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))  # importing a module that is None fails
"""


def modules(folder: str = "recollect") -> dict[str, Path]:
    """All modules of a package by their names."""
    paths = glob.iglob(f"{folder}/**/*.py", root_dir=REPOSITORY, recursive=True)  # follows the symbolic links
    return {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): REPOSITORY / path for path in paths}


def imports(path: Path) -> Iterator[str]:
    """Yield the dotted names that a file imports, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(name: str) -> str:
    """The part of `recollect` to which a name belongs."""
    second = name.split(".")[1] if "." in name else ""
    return second if second in MAY_IMPORT else "recollect"


def extra_of(name: str) -> str:
    """The folder of `recollect.extras` to which a name belongs; empty if it belongs to none."""
    return ".".join(name.split(".")[:3]) if name.startswith("recollect.extras.") else ""


def run_without(blocked: set[str], code: str, *arguments: Any) -> str:
    result = subprocess.run(
        [sys.executable, "-c", BLOCKED + code, ",".join(sorted(blocked)), *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_imports_go_one_way(part: str) -> None:
    paths = {name: path for name, path in modules().items() if part_of(name) == part}
    assert paths
    for name, path in paths.items():
        for imported in imports(path):
            top, public = imported.split(".")[0], PUBLIC_NAMES.get(name, "-")
            assert top not in NEVER_IMPORTS[part] | UNSAFE, f"{name} imports {imported}"
            if top == "recollect" and not imported.startswith(public):
                assert part_of(imported) in MAY_IMPORT[part] | {part}, f"{name} imports {imported}"


def test_no_folder_imports_another_one_both_ways() -> None:
    """Neither directly nor through others. A module that lies directly in a wide folder counts as a folder."""
    paths = modules()
    wide = {"recollect", *(f"recollect.{name}" for name in ("core", "service", "trainer", "index_builder", "extras"))}

    def folder(name: str) -> str:
        parent = name if paths[name].name == "__init__.py" else name.rpartition(".")[0]
        return name if parent in wide else parent.replace("trainer.data.formats", "trainer.data")

    graph: dict[str, set[str]] = {folder(name): set() for name in paths}
    for name, path in paths.items():
        names = (each if each in paths else each.rpartition(".")[0] for each in imports(path))
        graph[folder(name)] |= {folder(each) for each in names if each in paths} - {folder(name)}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError with a cycle


def test_each_folder_of_extras_is_imported_by_nobody() -> None:
    for name, path in (modules() | modules("tests")).items():
        own = extra_of(name.replace("tests.", "recollect.", 1)) or PUBLIC_NAMES.get(name, "")
        for imported in filter(None, map(extra_of, imports(path))):
            assert imported == own, f"{name} imports {imported}; use recollect.core.extras.load"


def test_each_folder_of_extras_has_a_line_in_the_registry_or_a_public_name() -> None:
    folders = {path.parent.name for path in (REPOSITORY / "recollect" / "extras").glob("*/__init__.py")}
    registered = {extra.module.partition(".")[0] for extra in extras.EXTRAS.values()}
    assert folders <= registered | {extra.rpartition(".")[2] for extra in PUBLIC_NAMES.values()}


def test_the_service_answers_queries_if_the_training_libraries_are_not_installed(built: Any) -> None:
    code = "import recollect; print(recollect.open(sys.argv[2]).predict('Who must pay tax')[0].uid)"
    missing = TORCH | OPTIONAL | {"recollect.trainer", "recollect.index_builder"}
    assert run_without(missing, code, built.store) == "Taxation\n"


def test_the_trainer_trains_if_no_web_server_is_installed(built: Any, tmp_path: Path) -> None:
    encoder = write_tiny_encoder(tmp_path / "encoder", "bert")
    code = "import recollect; print(recollect.train(*sys.argv[2:3], out=sys.argv[3], encoder=sys.argv[4], max_steps=1))"
    run = tmp_path / "run"
    assert run_without(NEVER_IMPORTS["trainer"], code, built.dataset, run, encoder) == f"{run}\n"
