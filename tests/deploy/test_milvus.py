"""The deployment of Milvus is valid, and its two forms agree."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.deploy.helpers import DEPLOY, run_tool

COMPOSE = DEPLOY / "milvus" / "compose.yml"
KUBERNETES = DEPLOY / "milvus" / "kubernetes.yaml"


@pytest.fixture
def service() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]["milvus"]
    return found


@pytest.fixture
def manifests() -> dict[str, Any]:
    documents = yaml.safe_load_all(KUBERNETES.read_text(encoding="utf-8"))
    return {f"{each['kind']} {each['metadata']['name']}": each for each in documents}


def test_compose_file_is_valid_and_opens_milvus_to_this_machine_only(service: dict[str, Any]) -> None:
    run_tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE)
    assert service["ports"] == ["127.0.0.1:19530:19530"]


def test_compose_files_add_milvus_to_the_replicas_of_the_composition() -> None:
    added = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    base = yaml.safe_load((DEPLOY / "compose.yml").read_text(encoding="utf-8"))["services"]
    assert {*added} - {*base} == {"milvus"}
    for name in {*added} & {*base}:
        assert added[name]["environment"] == {"RECOLLECT_ENGINE_URI": "http://milvus:19530"}


def test_both_forms_run_the_same_milvus(service: dict[str, Any], manifests: dict[str, Any]) -> None:
    (container,) = manifests["StatefulSet milvus"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == service["image"]
    assert container["args"] == service["command"]
    assert {each["name"]: each["value"] for each in container["env"]} == service["environment"]
    etcd = yaml.safe_load((DEPLOY / "milvus" / "etcd.yaml").read_text(encoding="utf-8"))
    assert yaml.safe_load(manifests["ConfigMap milvus-etcd"]["data"]["embedEtcd.yaml"]) == etcd
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    assert mounted == {"/var/lib/milvus", service["environment"]["ETCD_CONFIG_PATH"]}


def test_only_replicas_and_builders_can_reach_milvus(manifests: dict[str, Any]) -> None:
    (rule,) = manifests["NetworkPolicy milvus"]["spec"]["ingress"]
    labels = [each["podSelector"]["matchLabels"] for each in rule["from"]]
    replica = manifests["NetworkPolicy recollect-to-milvus"]["spec"]["podSelector"]["matchLabels"]
    pod = yaml.safe_load((DEPLOY / "kubernetes" / "deployment.yaml").read_text(encoding="utf-8"))["spec"]["template"]
    assert replica.items() <= pod["metadata"]["labels"].items()
    assert labels == [replica, {"recollect-builder": "true"}]
