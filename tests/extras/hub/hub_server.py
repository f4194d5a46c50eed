"""A small hub on this machine: repositories with commits, and the part of the hub's HTTP API that uploads need."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from tests import web

TOKEN = "hf_token-of-the-test-0123456789"


class Hub:
    """The contents of the hub.

    Attributes:
        repositories: For each repository, the files of each commit, and `main`, the newest commit.
        private: The repositories that were created as private.
        tokens: The `Authorization` headers that were received.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.private: set[str] = set()
        self.tokens: set[str | None] = set()
        self.url = ""

    def commit(self, repository: str, files: dict[str, bytes]) -> str:
        commits = self.repositories[repository]
        name = hashlib.sha1(f"{repository}{len(commits)}".encode()).hexdigest()
        commits[name] = commits["main"] = {**commits.get("main", {}), **files}
        return name

    def find_commit(self, repository: str, revision: str) -> str:
        commits = self.repositories[repository]
        return next(name for name in reversed(commits) if name != "main" and commits[name] is commits[revision])


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(web.Handler):
        def do_HEAD(self) -> None:  # noqa: N802
            self.do_GET()

        def do_GET(self) -> None:  # noqa: N802
            hub.tokens.add(self.headers["Authorization"])
            if (facts := re.fullmatch(r"/api/models/([^/]+/[^/?]+)", self.path)) and facts[1] in hub.repositories:
                content = {"id": facts[1], "private": facts[1] in hub.private}
                self.answer(200, json.dumps(content).encode())
                return
            if listed := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/?]+)(\?.*)?", self.path):
                self.list_files(*listed.group(1, 2, 3))
                return
            found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
            commits = hub.repositories.get(found[1], {}) if found else {}
            if not found or not commits:
                self.answer(404, headers={"X-Error-Code": "RepoNotFound"})
            elif found[2] not in commits:
                self.answer(404, headers={"X-Error-Code": "RevisionNotFound"})
            elif found[3] not in commits[found[2]]:
                self.answer(404, headers={"X-Error-Code": "EntryNotFound"})
            else:
                content = commits[found[2]][found[3]]
                etag, commit = hashlib.sha1(content).hexdigest(), hub.find_commit(found[1], found[2])
                self.answer(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": commit})

        def list_files(self, repository: str, what: str, revision: str) -> None:
            commits = hub.repositories.get(repository)
            if commits is None or revision not in commits:
                code = "RepoNotFound" if commits is None else "RevisionNotFound"
                self.answer(404, headers={"X-Error-Code": code})
                return
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in commits[revision].items()
            ]
            facts = {"id": repository, "sha": hub.find_commit(repository, revision), "siblings": []}
            self.answer(200, json.dumps(tree if what == "tree" else facts).encode())

        def do_POST(self) -> None:  # noqa: N802
            body = self.body().decode()
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                self.answer(401, b'{"error": "Invalid username or password."}')
            elif self.path == "/api/repos/create":
                given = json.loads(body)
                name = "/".join(filter(None, (given.get("organization"), given["name"])))
                if name in hub.repositories:
                    self.answer(409, json.dumps({"url": f"{hub.url}/{name}"}).encode())
                    return
                hub.repositories[name] = {}
                if given.get("private") or given.get("visibility") == "private":
                    hub.private.add(name)
                self.answer(200, json.dumps({"url": f"{hub.url}/{name}"}).encode())
            elif self.path == "/api/validate-yaml":
                self.answer(200, b'{"errors": [], "warnings": []}')
            elif self.path.endswith("/preupload/main"):
                modes = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
                self.answer(200, json.dumps({"files": [{**mode, "shouldIgnore": False} for mode in modes]}).encode())
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", self.path):
                lines = [json.loads(line) for line in body.splitlines()]
                files = {each["value"]["path"]: each["value"]["content"] for each in lines if each["key"] == "file"}
                name = hub.commit(found[1], {path: base64.b64decode(content) for path, content in files.items()})
                url = f"{hub.url}/{found[1]}/commit/{name}"
                self.answer(200, json.dumps({"commitUrl": url, "commitOid": name}).encode())
            else:
                self.answer(404)

    with web.answering(Handler) as port:
        hub.url = f"http://127.0.0.1:{port}"
        yield hub
