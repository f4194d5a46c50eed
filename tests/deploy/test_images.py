"""The images: locked dependencies, and a Dockerfile that installs nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.helpers import DEPLOY, FINE, OVERLOADED, REPOSITORY, Answer, FakeReplica, run_tool

DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# The extras of each image.
EXTRAS = {"cpu": ("serve", "cpu", "s3"), "cuda": ("serve", "gpu", "s3")}


def locked(name: str) -> dict[str, list[tuple[str, int]]]:
    """For each package of a lock file, its versions, each with its number of hashes.

    A package can have several versions, for several releases of Python.
    """
    text = (DEPLOY / "requirements" / f"{name}.lock").read_text(encoding="utf-8").replace("\\\n", "")
    packages: dict[str, list[tuple[str, int]]] = {}
    for line in text.splitlines():
        if match := re.match(r"(\S+)==([^\s;]+)", line):
            packages.setdefault(canonicalize_name(match[1]), []).append((match[2], line.count("--hash=sha256:")))
    return packages


def required(name: str) -> list[Requirement]:
    if name == "build":
        lines = (DEPLOY / "requirements" / "build.in").read_text(encoding="utf-8").splitlines()
        return [Requirement(line) for line in [*lines, "setuptools>=77"]]
    extras = PROJECT["optional-dependencies"]
    return [Requirement(line) for line in [*PROJECT["dependencies"], *(e for x in EXTRAS[name] for e in extras[x])]]


@pytest.mark.parametrize("name", ["build", "cpu", "cuda"])
def test_lock_file_satisfies_the_project_and_has_a_hash_for_every_package(name: str) -> None:
    packages = locked(name)
    for requirement in required(name):
        if requirement.marker is None or requirement.marker.evaluate({"sys_platform": "linux"}):
            versions = [version for version, _ in packages.get(canonicalize_name(requirement.name), [])]
            assert versions, f"{requirement} is missing; run `make lock`"
            assert all(requirement.specifier.contains(version) for version in versions), (
                f"{requirement}: run `make lock`"
            )
    assert all(hashes for versions in packages.values() for _, hashes in versions)


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_images_contain_neither_torch_nor_transformers(name: str) -> None:
    assert not {"torch", "transformers"} & locked(name).keys()


def test_dockerfile_installs_only_packages_with_hashes_and_the_wheel_of_the_service() -> None:
    installs = re.findall(r"/pip (?:install|wheel) [^&\n]*", DOCKERFILE)
    assert installs
    for command in installs:
        assert "--require-hashes --requirement /requirements/" in command or "--no-deps" in command, command
    assert "--no-build-isolation" in DOCKERFILE  # otherwise pip installs the build backend without a hash


def test_hadolint_accepts_the_dockerfile() -> None:
    assert run_tool("hadolint", "--strict-labels", DEPLOY / "Dockerfile") == ""


def test_dockerfile_copies_all_files_of_the_build_context_and_no_others() -> None:
    copied = {
        word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE) for word in line.split()
    }
    context = set(re.findall(r"^!(.*)$", (REPOSITORY / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE))
    assert copied == context
    assert all((REPOSITORY / name).exists() for name in copied)


@pytest.mark.parametrize(("answer", "status"), [(FINE, 0), (OVERLOADED, 1)])
def test_health_check_succeeds_only_if_the_service_is_ready(answer: Answer, status: int) -> None:
    with FakeReplica("replica") as replica:
        replica.answer = answer
        variables = {"RECOLLECT_HOST": "0.0.0.0", "RECOLLECT_PORT": replica.address.partition(":")[2]}
        variables |= {"RECOLLECT_TLS_CERT": "", "http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
        done = subprocess.run([sys.executable, DEPLOY / "check_ready.py"], env=variables, stderr=subprocess.DEVNULL)
    assert done.returncode == status
    assert [path for path, _, _ in replica.requests] == ["/health/ready"]
