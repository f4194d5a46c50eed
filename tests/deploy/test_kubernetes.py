"""The Kubernetes manifests are valid for several Kubernetes releases, and consistent with each other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from recollect.service.settings import ServeSettings
from tests.deploy.helpers import DEPLOY, run_tool

FOLDER = DEPLOY / "kubernetes"
MANIFESTS = [
    *sorted(path for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml"),
    DEPLOY / "milvus" / "kubernetes.yaml",
]
# The oldest Kubernetes release that has all fields in use, and the newest Kubernetes release whose schemas are
# available.
RELEASES = ("1.31.0", "1.36.0")


def manifest(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return content


@pytest.fixture
def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifest("deployment")["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    return dict(only)


def validate(release: str, *manifests: Path) -> None:
    run_tool("kubernetes-validate", "--strict", "--no-warn", "--kubernetes-version", release, *manifests)


@pytest.mark.parametrize("release", RELEASES)
def test_manifests_are_valid_for_the_kubernetes_release(release: str) -> None:
    validate(release, *MANIFESTS)


def test_kustomization_builds_valid_manifests(tmp_path: Path) -> None:
    built = tmp_path / "built.yaml"
    built.write_text(run_tool("kubectl", "kustomize", FOLDER), encoding="utf-8")
    validate(RELEASES[-1], built)
    by_kind = {each["kind"]: each for each in yaml.safe_load_all(built.read_text(encoding="utf-8"))}
    assert by_kind["Deployment"]["spec"]["template"]["spec"]["containers"][0]["image"].count(":") == 1
    (source, _) = by_kind["Deployment"]["spec"]["template"]["spec"]["containers"][0]["envFrom"]
    assert source["configMapRef"]["name"] == by_kind["ConfigMap"]["metadata"]["name"] != "recollect"


def test_monitoring_adds_rules_a_monitor_and_autoscaling_by_queue_wait(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "kubernetes")
    path = folder / "kustomization.yaml"
    text = path.read_text(encoding="utf-8")
    assert "# components: [monitoring]\n" in text
    path.write_text(text.replace("# components", "components"), encoding="utf-8")
    built = {each["kind"]: each for each in yaml.safe_load_all(run_tool("kubectl", "kustomize", folder))}
    queue, cpu = built["HorizontalPodAutoscaler"]["spec"]["metrics"]
    adapter = yaml.safe_load((FOLDER / "monitoring" / "prometheus-adapter-values.yaml").read_text(encoding="utf-8"))
    assert queue["pods"]["metric"]["name"] == adapter["rules"]["custom"][0]["name"]["as"]
    assert cpu["resource"]["name"] == "cpu"
    scaler = tmp_path / "scaler.yaml"
    scaler.write_text(yaml.safe_dump(built["HorizontalPodAutoscaler"]), encoding="utf-8")
    validate(RELEASES[-1], scaler)
    monitor = built["ServiceMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= built["Service"]["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == built["Service"]["spec"]["ports"][0]["name"]
    # The alerts select the job `recollect`, which the Prometheus Operator names after the Service.
    assert built["Service"]["metadata"]["name"] == "recollect"
    assert "jobLabel" not in monitor


def test_replicas_run_without_privileges(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert not manifest("service-account")["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsUser"] == 10001
    assert "USER 10001:10001" in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def test_termination_grace_period_is_long_enough_to_finish_requests(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    _, pause = container["lifecycle"]["preStop"]["exec"]["command"]
    drain = ServeSettings.model_fields["drain_seconds"].default
    assert pod["terminationGracePeriodSeconds"] > int(pause) + drain
    readiness = container["readinessProbe"]
    assert int(pause) > readiness["periodSeconds"] * readiness["failureThreshold"]


def test_label_selectors_match_the_pods_of_the_replicas(pod: dict[str, Any]) -> None:
    deployment = manifest("deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels == manifest("service")["spec"]["selector"]
    assert manifest("disruption-budget")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("network-policy")["spec"]["podSelector"]["matchLabels"] == labels
    assert all(each["labelSelector"]["matchLabels"] == labels for each in pod["topologySpreadConstraints"])
    assert manifest("autoscaler")["spec"]["scaleTargetRef"]["name"] == manifest("deployment")["metadata"]["name"]


def documents(name: str) -> dict[str, dict[str, Any]]:
    """The resources of a manifest by kind and name."""
    found = yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return {f"{each['kind']} {each['metadata']['name']}": each for each in found}


def test_only_compaction_mounts_the_signing_key(pod: dict[str, Any]) -> None:
    secrets = documents("secret.example")
    assert list(secrets["Secret recollect-signing"]["stringData"]) == ["private.pem"]
    compaction = documents("compaction")["CronJob recollect-compaction"]["spec"]["jobTemplate"]["spec"]["template"]
    volumes = {each["name"]: each.get("secret", {}).get("secretName") for each in compaction["spec"]["volumes"]}
    mounts = {each["name"]: each["mountPath"] for each in compaction["spec"]["containers"][0]["volumeMounts"]}
    assert (volumes["signing"], mounts["signing"]) == ("recollect-signing", "/etc/recollect-signing")
    assert "/etc/recollect-signing/private.pem}" in (FOLDER / "compaction.yaml").read_text(encoding="utf-8")
    of_replicas = [each.get("secret", {}).get("secretName") for each in pod["volumes"]]
    assert "recollect-signing" not in of_replicas
    assert "recollect-files" in of_replicas


def test_compaction_pods_have_a_label_and_a_network_policy_of_their_own(pod: dict[str, Any]) -> None:
    found = documents("compaction")
    compaction = found["CronJob recollect-compaction"]["spec"]["jobTemplate"]["spec"]["template"]
    policy = found["NetworkPolicy recollect-compaction"]["spec"]
    labels = compaction["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert not manifest("service")["spec"]["selector"].items() <= labels.items()  # it gets no requests
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy
    assert policy["egress"] == manifest("network-policy")["spec"]["egress"]
