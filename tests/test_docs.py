"""The documentation is correct: its commands run, and its links, verbs, flags and files exist.

The tests run each code block below a comment `<!-- tested -->`. The blocks of a page run in order. All pages share one
folder with `data/` and `products.csv` (copies from examples/), `run/` and `store/`. VERSION is replaced by the version
in the store, and localhost:8000 by the address of a real server: the one that the page has started, or one that serves
this store.

A block of the language `text` below such a block is its output, as a reader sees it. Then each marked block of the page
has an output, except the start of a server. Such a page has a folder of its own, and runs with the packaged encoder.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import recollect
from recollect.core.options import AnswerOptions
from recollect.trainer.methods import METHODS
from tests.extras import is_present, needs_extra
from tests.processes import serving
from tests.tiny_runs import write_tiny_encoder

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "CHANGELOG.md",
    *sorted(DOCS.glob("*.md")),
]
# Files with settings and secrets, which no repository contains.
CREATED_BY_USERS = ("deploy/service.env", "deploy/.env", "deploy/keys/", "deploy/alertmanager/webhook.yml")
BLOCK = re.compile(r"^(<!-- tested -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Differs from run to run: the id of a version, a time, a rate, and a size in memory.
FREE = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}|\d[\d,.]* ?(?:m?s|seconds|[MG]i?B|[a-z]+/s)\b")
NUMBER = re.compile(r"(\d+(?:,\d{3})*(?:\.\d+)?)")


class Block(NamedTuple):
    tested: bool
    language: str
    text: str


class Workshop(NamedTuple):
    """The folder in which commands run, its version, and the slow commands that have run already."""

    folder: Path
    version: str
    done: set[str]


def blocks(page: Path) -> list[Block]:
    return [Block(bool(mark), language, text) for mark, language, text in BLOCK.findall(page.read_text("utf-8"))]


def steps(page: Path) -> list[tuple[Block, str]]:
    """The marked blocks of a page, each with the output that the page shows, or with an empty text."""
    pairs = itertools.pairwise([*blocks(page), Block(False, "", "")])
    return [(block, after.text if after.language == "text" else "") for block, after in pairs if block.tested]


def shows_output(page: Path) -> bool:
    return any(shown for _, shown in steps(page))


def named(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


# ---- Commands ----


def copy_examples(folder: Path) -> Path:
    shutil.copytree(REPOSITORY / "examples" / "garden", folder / "data")
    return Path(shutil.copy(REPOSITORY / "examples" / "products.csv", folder)).parent


@pytest.fixture(scope="module")
def first_steps(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A folder as it is after the commands of the quickstart, with a tiny encoder, which all later commands use too."""
    folder = copy_examples(tmp_path_factory.mktemp("docs"))
    encoder = write_tiny_encoder(folder / "encoder", "bert")
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_encoder(patch, encoder)
        run = recollect.train(folder / "data", out=folder / "run", max_length=32)
        version = recollect.build(run, store=folder / "store", activate=True, index="flat")
    return Workshop(folder, version, set())


def use_tiny_encoder(patch: pytest.MonkeyPatch, encoder: Path) -> None:
    for name, value in {"ENCODER": str(encoder), "PRECISION": "fp32", "FORCE": "true"}.items():
        patch.setenv(f"RECOLLECT_{name}", value)


@pytest.fixture
def workshop(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Workshop:
    if shows_output(page):
        return Workshop(copy_examples(tmp_path), "", set())
    shared: Workshop = request.getfixturevalue("first_steps")
    use_tiny_encoder(monkeypatch, shared.folder / "encoder")
    return shared


@pytest.fixture(scope="module")
def server(first_steps: Workshop) -> Iterator[str]:
    """Host and port of a server that serves the store."""
    with serving(first_steps.folder / "store") as running:
        yield running.url.removeprefix("http://")


TESTED = [
    pytest.param(page, id=named(page), marks=[needs_extra("annif")] if page.stem == "annif" else [])
    for page in PAGES
    if steps(page)
]


@pytest.mark.usefixtures("export_once")
@pytest.mark.parametrize("page", TESTED)
def test_marked_commands_of_each_page_run_without_an_error_and_print_what_the_page_shows(
    page: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(workshop.folder)
    names: dict[str, Any] = {}
    with contextlib.ExitStack() as servers:
        address = ""
        for block, shown in steps(page):
            printed = io.StringIO()
            text = block.text.replace("VERSION", workshop.version)
            if "localhost:8000" in text:
                text = text.replace("localhost:8000", address or request.getfixturevalue("server"))
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                if block.language == "python":
                    exec(compile(text, str(page), "exec"), names)
                else:
                    assert block.language == "sh"
                    for command in text.replace("\\\n", " ").split("\n") if "recollect " in text else [text]:
                        if command.startswith("recollect serve --store "):
                            running = servers.enter_context(serving(*shlex.split(command, comments=True)[3:]))
                            address = running.url.removeprefix("http://")
                        elif shown or command not in workshop.done:  # another page has run this slow command already
                            printed.write(run_shell(command))
                            workshop.done.add(command)
            if shown:
                compare_output(shown, printed.getvalue())
            else:
                assert not shows_output(page) or "recollect serve " in text, f"{named(page)} shows no output of: {text}"


def compare_output(shown: str, printed: str) -> None:
    """Compare line by line. The line `...` stands for any lines, and `...` in a line for any characters."""
    rest = iter(printed.splitlines())
    skip = False
    for line in shown.splitlines():
        if line == "...":
            skip = True
            continue
        found = next((other for other in rest if not skip or agree(line, other)), None)
        assert agree(line, found or ""), f"expected: {line}\nfound: {found}\nin:\n{printed}"
        skip = False
    assert skip or not "".join(rest).strip(), f"expected no further lines in:\n{printed}"


def agree(shown: str, printed: str) -> bool:
    """True if two lines are equal, except for white space, a tenth of each number, and texts that no run repeats."""
    pieces = NUMBER.split(" ".join(FREE.sub("_", shown).split()))
    texts = (re.escape(text).replace(r"\.\.\.", ".*?") for text in pieces[::2])
    found = re.fullmatch(NUMBER.pattern.join(texts), " ".join(FREE.sub("_", printed).split()))
    if not found:
        return False
    pairs = zip(pieces[1::2], found.groups(), strict=True)
    return all(math.isclose(*(float(number.replace(",", "")) for number in pair), rel_tol=0.1) for pair in pairs)


def run_shell(command: str) -> str:
    """Run a command and return its output.

    `recollect` runs in this process, which has imported its packages already, and prints; others run in a shell.
    """
    words = shlex.split(command, comments=True)
    unquoted = re.sub("'[^']*'", "", command.partition(" #")[0])
    if words[:1] == ["recollect"] and not set("|&;<>$") & set(unquoted):
        assert recollect.main(words[1:]) == 0, command
        return ""
    if not words:
        return ""
    flags = "--fail-with-body --silent --show-error"  # so curl fails if the server answers with an error
    shell = f'curl() {{ command curl {flags} "$@"; }}\n{command}'
    done = subprocess.run(["bash", "-euc", shell], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def test_json_blocks_contain_valid_json() -> None:
    found = [block.text for page in PAGES for block in blocks(page) if block.language == "json"]
    assert found
    for text in found:
        json.loads(text)


# ---- Links, verbs, flags, files ----


def anchors(page: Path) -> set[str]:
    """The link fragments of a page's headings, by the rules of MkDocs and GitHub."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_name_existing_files_and_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text("utf-8")))
    for link in links:
        target, _, fragment = link.partition("#")
        if "://" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{named(page)} links to {link}"
        if page.parent == DOCS:  # the site contains only the files in docs/
            assert path.is_relative_to(DOCS), link
        assert not fragment or fragment in anchors(path), link


def help_of(verb: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit):
        recollect.main([verb, "--help"])
    return printed.getvalue()


@pytest.fixture(scope="module")
def flags() -> dict[str, set[str]]:
    """The flags of each verb."""
    return {verb: set(re.findall(r"--[a-z][a-z-]*", help_of(verb))) for verb in recollect.cli.verbs.VERBS}


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the verb and the flags of each `recollect VERB ...` on a page, in code blocks and in the text."""
    text = page.read_text("utf-8")
    lines = [line.partition(" #")[0] for block in blocks(page) for line in block.text.replace("\\\n", " ").split("\n")]
    inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", BLOCK.sub("", text))]
    for line in [*lines, *inline]:
        if match := re.search(r"(?:^|-m |operate )recollect ([a-z]+)\b(.*)", line):
            yield match[1], match[2]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_use_existing_verbs_and_flags(page: Path, flags: dict[str, set[str]]) -> None:
    for verb, rest in commands(page):
        assert verb in flags, f"recollect {verb}{rest}"
        assert set(re.findall(r"--[a-z][a-z-]*", rest)) <= flags[verb], f"recollect {verb}{rest}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=named)
def test_each_flag_in_the_documentation_is_a_flag_of_a_recollect_verb(page: Path, flags: dict[str, set[str]]) -> None:
    named_flags = set(re.findall(r"`(--[a-z][a-z-]*)", BLOCK.sub("", page.read_text("utf-8"))))
    assert not named_flags - set().union(*flags.values()), f"{named(page)} names unknown flags"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_of_the_repository_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    if page.name == "CHANGELOG.md":  # the changelog also names files that no longer exist
        return
    roots = "recollect|trainer|index_builder|service|benchmarks|loadtests|tests|docs|examples|deploy"
    for path in re.findall(rf"`((?:{roots})/[\w./-]+)`", text):
        folder, _, extra = path.rpartition("/")
        if folder == "recollect/extras" and extra.islower() and not is_present(extra):
            continue
        known = REPOSITORY / path.partition("NAME")[0]  # a page writes NAME for a name that a reader chooses
        assert known.exists() or path.startswith(CREATED_BY_USERS), f"{named(page)} names {path}"
    for module in re.findall(r"python -m ((?:benchmarks|loadtests)[\w.]*)", text):
        path = REPOSITORY / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{named(page)} names {module}"


def test_every_page_is_in_the_navigation_and_the_readme() -> None:
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    navigation = (REPOSITORY / "properdocs.yml").read_text("utf-8")
    for page in DOCS.glob("*.md"):
        assert f" {page.name}\n" in navigation
        assert f"(docs/{page.name})" in readme or page.name == "index.md"


def test_site_builds_without_warnings_and_loads_nothing_from_other_servers(tmp_path: Path) -> None:
    pytest.importorskip("properdocs", reason="properdocs is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "properdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "index.html").read_text("utf-8")
    assert not re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"?https?://", page)


def test_table_of_options_has_a_row_for_each_option_of_an_answer() -> None:
    page = (DOCS / "http-api.md").read_text(encoding="utf-8")
    missing = [name for name in AnswerOptions.__dataclass_fields__ if f"| `{name.rstrip('_')}` |" not in page]
    assert not missing, f"docs/http-api.md: expected a row for each option, found none for {missing}"


def test_table_of_training_methods_has_a_row_for_each_method_and_links_its_paper() -> None:
    page = (DOCS / "methods.md").read_text("utf-8")
    assert re.findall(r"^\| `(\w+)`", page, re.MULTILINE) == list(METHODS), "docs/methods.md"
    assert {method.source for method in METHODS.values() if method.source not in page} == set(), "docs/methods.md"


def test_cost_of_a_million_texts_is_that_of_its_formula_and_the_rates_are_those_of_the_benchmarks() -> None:
    benchmarks = "".join((DOCS / name).read_text("utf-8") for name in ("benchmarks.md", "appendix-benchmarks.md"))
    section = (DOCS / "sizing.md").read_text("utf-8").partition("## Cost")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| ([\d.]+) \| ([\d,]+) \| ([\d.]+) \|$", section, re.MULTILINE)
    assert rows
    for price, rate, euros in rows:
        assert re.search(rf"\b{rate}\b", benchmarks), f"docs/sizing.md: no benchmark has {rate} texts/s"
        assert euros == f"{float(price) / (int(rate.replace(',', '')) * 3600) * 1e6:.3f}"


@pytest.mark.parametrize(
    ("shown", "printed"),
    [("...\nP@1 60.00", "head\nP@1 91.67"), ("a\n...", "b"), ("a", "a\nb"), ("a\nb", "a"), ("a ... 2", "a 1 3")],
)
def test_comparison_of_outputs_finds_a_difference(shown: str, printed: str) -> None:
    with pytest.raises(AssertionError, match="expected"):
        compare_output(shown, printed)


def test_comparison_of_outputs_permits_small_differences_and_free_values() -> None:
    shown = "x\n...\nscore 0.475, 36 texts of 12 s\n...\nkeys: 48 at 650 texts/s, ... version 20261128-235220-d9e72d\n"
    printed = "x\nscore   0.48, 36 texts of 3 s\n1\n2\nkeys: 48 at 1,028 texts/s, and version 20270101-000000-aaaaaa\n"
    compare_output(shown, printed)
