"""The command line: verbs, flags, environment variables, error messages and exit statuses."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import recollect
from recollect.cli.verbs import VERBS, Verb
from recollect.service.settings import ServeSettings
from recollect.trainer.train_settings import TrainSettings

REPOSITORY = Path(__file__).parents[2]
SECURITY = {
    "api_keys",
    "encoder_token",
    "engine_ca",
    "engine_token",
    "reranker_token",
    "sign",
    "tls_cert",
    "tls_key",
    "verify_key",
}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RECOLLECT_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that runs a command, which must fail with one line on stderr and no output, and returns the line."""

    def run(*arguments: str, status: int = 2) -> str:
        assert recollect.main(arguments) == status
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        return err

    return run


@pytest.fixture
def verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that adds a verb `attempt`. `body` is its code, `top` is code at the start of its module."""

    def add(body: str, top: str = "") -> None:
        code = (
            "import errno\nimport recollect\nfrom pydantic_settings import BaseSettings\n"
            f"{top}\nclass Settings(BaseSettings):\n"
            f"    size: int = 1\ndef attempt(settings: Settings):\n    {body}\n"
        )
        (tmp_path / "attempts.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "attempts", raising=False)
        monkeypatch.setitem(VERBS, "attempt", Verb("attempts", "serve", "attempt something"))

    return add


def python(code: str, **variables: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **variables},
    )
    return result.stdout


def test_help_of_a_verb_loads_no_heavy_library() -> None:
    code = """
import sys, recollect
for name in recollect.cli.verbs.VERBS:
    try:
        recollect.main([name, "--help"])
    except SystemExit:
        pass
print(*sys.modules)
"""
    modules = set(python(code).splitlines()[-1].split())
    assert not modules & {"torch", "transformers", "onnxruntime", "faiss", "fastapi", "pyarrow", "cryptography"}


def test_help_of_train_has_every_flag_once_under_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        recollect.main(["train", "--help"])
    printed = capsys.readouterr().out
    assert printed.startswith("usage: recollect train --out PATH [FLAGS] DATASET\n\nTrain an encoder ")
    blocks = [block.split(":\n", 1) for block in printed.split("\n\n")[2:]]
    under = {heading: re.findall(r"^  (--?[\w-]+)", flags, re.MULTILINE) for heading, flags in blocks}
    headings = [
        "positional arguments",
        "the flags that matter first",
        "data",
        "encoder",
        "training",
        "method",
        "output",
    ]
    assert [*under] == [*headings, "others"]
    assert under["others"] == ["-h"]
    assert len(under["the flags that matter first"]) == 10
    fields = TrainSettings.model_fields.items()
    wanted = {"--" + (field.alias or name).replace("_", "-") for name, field in fields if name != "dataset"}
    assert sorted(flag for flags in under.values() for flag in flags) == sorted(wanted | {"-h"})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["xyz"], "recollect: expected a verb, found 'xyz'; one of: demo, sample"),
        (["memory", "--store", "x"], "unrecognized arguments: --store; give the value without --store; see"),
        (["trian"], "recollect: expected a verb, found 'trian'; did you mean `recollect train`?"),
        (
            ["train", "x", "--ot", "r"],
            "unrecognized arguments: --ot r; did you mean --out? see `recollect train --help`",
        ),
        (["versions", "--bad", "3"], "recollect versions: unrecognized arguments: --bad 3; see"),
        (["versions", "--store"], "argument --store: expected one argument; see"),
        (["versions", "one", "two"], "unrecognized arguments: one two"),
        (["predict", "hi", "--store", "x", "--top-k", "few"], "--top-k: expected a valid integer"),
        (["serve", "--store", "x", "--port", "-1"], "--port: expected greater than or equal to 0; found '-1'"),
        (["build", "run", "--store", "x", "--index", ""], "--index: expected String should have at least 1 character"),
        (
            ["build", "run", "--store", "x", "--recall-target", "1.1"],
            "--recall-target: expected less than or equal to 1",
        ),
        (["build", "run", "--store", "x", "--memory-budget", "2 ells"], "--memory-budget: expected "),
        (["build", "run", "--store", "x", "--latency-budget-ms", "0"], "--latency-budget-ms: expected greater than 0"),
        (["serve", "--store", "x", "--rate-limit", "5"], "--rate-limit: needs --api-keys"),
        (
            ["serve", "--store", "x", "--cors-origins", "a.b"],
            "origins such as https://shop.example, found 'a.b'",
        ),
        (["activate", "../x", "--store", "x"], "version '../x': expected letters, digits, '_' and '-'"),
    ],
)
def test_wrong_arguments_give_a_message_of_one_line(
    fails: Callable[..., str], arguments: list[str], expected: str
) -> None:
    assert expected in fails(*arguments)


def test_wrong_environment_variable_gives_a_message_of_one_line(
    fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECOLLECT_PORT", "http")
    assert "--port: expected a valid integer" in fails("serve", "--store", "x")


def test_empty_environment_variables_mean_the_defaults(
    fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ServeSettings.model_fields.keys() - SECURITY:
        monkeypatch.setenv(f"RECOLLECT_{name.upper()}", "")
    assert "--store is required" in fails("serve")
    assert "--hang-seconds: must be greater" in fails("serve", "--store", "x", "--hang-seconds", "1")
    assert "--index: expected String should have" in fails("build", "run", "--store", "x", "--index", "")  # a flag


@pytest.mark.parametrize("name", sorted(SECURITY))
def test_empty_variable_of_a_key_or_certificate_is_refused(
    fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"RECOLLECT_{name.upper()}", "")
    command = ("build", "run") if name == "sign" else ("serve",)
    assert f"RECOLLECT_{name.upper()}: expected a value, found an empty one" in fails(*command, "--store", "none")


def test_missing_folder_for_temporary_files_is_named(fails: Callable[..., str], verb: Callable[..., None]) -> None:
    verb("raise FileNotFoundError(errno.ENOENT, \"No usable temporary directory found in ['/tmp', '/']\")")
    assert "TMPDIR: expected a folder for temporary files, found none; name a folder" in fails("attempt")


def test_error_of_the_operating_system_gives_a_message_of_one_line(
    fails: Callable[..., str], verb: Callable[..., None]
) -> None:
    verb("open('/none/at/all')")
    assert (
        fails("attempt")
        == "recollect attempt: /none/at/all: No such file or directory; name an existing file or folder\n"
    )


def test_operating_system_error_without_a_file_name_is_reported_with_the_word_system(
    fails: Callable[..., str], verb: Callable[..., None]
) -> None:
    verb("raise OSError(errno.ENOSPC, 'No space left on device')")
    assert fails("attempt") == f"recollect attempt: system: {os.strerror(errno.ENOSPC)}\n"


@pytest.mark.parametrize("place", ["body", "top"])
def test_missing_package_names_the_extra_to_install(
    fails: Callable[..., str], verb: Callable[..., None], place: str
) -> None:
    verb(**({"body": "pass"} | {place: "import no_such_package.part"}))
    assert fails("attempt") == "recollect attempt: needs no_such_package; pip install 'recollect-xmc[serve]'\n"


def test_error_for_a_missing_module_of_recollect_has_a_traceback(verb: Callable[..., None]) -> None:
    verb("import recollect.service.no_such_module")
    with pytest.raises(ModuleNotFoundError):
        recollect.main(["attempt"])


def test_error_from_a_bug_has_a_traceback(verb: Callable[..., None]) -> None:
    verb("raise RuntimeError('a bug')")
    with pytest.raises(RuntimeError, match="a bug"):
        recollect.main(["attempt"])


def test_interrupted_command_exits_with_130_and_a_message_of_one_line(
    fails: Callable[..., str], verb: Callable[..., None]
) -> None:
    verb("raise KeyboardInterrupt")
    assert fails("attempt", status=130) == "recollect attempt: interrupted\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["--help", "versions --help"])
def test_closed_output_pipe_is_not_an_error(arguments: str, unbuffered: str) -> None:
    command = f"{sys.executable} -m recollect {arguments} | true"
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    result = subprocess.run(["bash", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, env=env)
    assert result.stderr == ""


def test_packages_of_both_cpu_and_gpu_are_refused_with_one_line(tmp_path: Path) -> None:
    for name in ("faiss_cpu", "onnxruntime_gpu"):  # as pip records an installed package
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n"
        (tmp_path / f"{name}-1.0.dist-info" / "METADATA").write_text(metadata)
    command = [sys.executable, "-m", "recollect", "versions", "--store", "s"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "exclude each other: pip uninstall faiss-cpu" in done.stderr
    assert "onnxruntime-gpu" in done.stderr
