"""The files in deploy/ are valid, and the settings, commands, metrics and alerts that they name exist."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from recollect.core.settings import ENV_PREFIX
from recollect.index_builder.settings import CompactSettings
from recollect.service.settings import ServeSettings
from tests.deploy.helpers import DEPLOY, REPOSITORY, run_tool

RUNBOOK = "".join(
    (REPOSITORY / "docs" / name).read_text(encoding="utf-8") for name in ("operating.md", "appendix-operating.md")
)
PROMETHEUS = DEPLOY / "prometheus"
GROUPS = [
    group
    for name in ("alerts.yml", "slo.yml")
    for group in yaml.safe_load((PROMETHEUS / name).read_text(encoding="utf-8"))["groups"]
]
RULES = [rule for group in GROUPS for rule in group["rules"]]
DASHBOARD = (DEPLOY / "grafana" / "recollect.json").read_text(encoding="utf-8")
MONITORING = DEPLOY / "kubernetes" / "monitoring"
HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yml").read_text(encoding="utf-8"))
    return content


def test_every_setting_named_in_a_deploy_file_exists() -> None:
    known = {f"{ENV_PREFIX}{name}".upper() for name in ServeSettings.model_fields | CompactSettings.model_fields}
    for path in (path for path in DEPLOY.rglob("*") if path.is_file()):
        named = set(re.findall(rf"\b{ENV_PREFIX}[A-Z_]+", path.read_text(encoding="utf-8")))
        assert named <= known, path


def test_service_env_example_lists_every_setting_with_its_default() -> None:
    text = (DEPLOY / "service.env.example").read_text(encoding="utf-8")
    shown = re.findall(rf"^(# )?{ENV_PREFIX}([A-Z_]+)=(.*)$", text, re.MULTILINE)
    assert [name for _, name, _ in shown] == list(dict.fromkeys(name for _, name, _ in shown))
    assert {name.lower() for _, name, _ in shown} == set(ServeSettings.model_fields)
    for commented_out, name, value in shown:
        default = ServeSettings.model_fields[name.lower()].default
        if commented_out and default is not None:
            assert value == (str(default).lower() if isinstance(default, bool) else str(default)), name


def test_every_metric_named_in_rules_dashboard_adapter_or_runbook_exists() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    from recollect.service.telemetry.metrics import Metrics

    metrics = Metrics(with_redis=True, with_engine=True, with_tls=True, with_encoder=True)
    families = list(text_string_to_metric_families(metrics.exposition().decode()))
    known = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    known |= {
        family.name + suffix for family in families if family.type == "histogram" for suffix in HISTOGRAM_SUFFIXES
    }
    known |= {family.name + suffix for family in families if family.type == "summary" for suffix in ("_sum", "_count")}
    expressions = " ".join(rule["expr"] for rule in RULES)
    adapter = yaml.safe_load((MONITORING / "prometheus-adapter-values.yaml").read_text(encoding="utf-8"))
    (custom,) = adapter["rules"]["custom"]
    named = expressions + DASHBOARD + custom["seriesQuery"] + custom["metricsQuery"]
    assert set(re.findall(r"\brecollect_[a-z_]+", named)) <= known
    known.add(custom["name"]["as"])
    assert set(re.findall(r"\brecollect_[a-z_]+", RUNBOOK)) <= known


def test_every_recorded_series_named_in_rules_or_dashboard_is_recorded() -> None:
    named = set(re.findall(r"\brecollect:[\w:]+", " ".join(rule["expr"] for rule in RULES) + DASHBOARD))
    assert named == {rule["record"] for rule in RULES if "record" in rule}


def test_runbook_has_a_section_for_each_alert_in_the_same_order() -> None:
    alerts = [rule["alert"] for rule in RULES if "alert" in rule]
    assert re.findall(r"^### (Recollect\w+)$", RUNBOOK, re.MULTILINE) == alerts


def test_kubernetes_manifest_has_the_same_rules_as_prometheus() -> None:
    manifest = yaml.safe_load((MONITORING / "prometheus-rule.yaml").read_text(encoding="utf-8"))
    assert manifest["spec"]["groups"] == GROUPS, "run `make rules`"


def test_prometheus_configuration_is_valid_and_alerts_fire_as_expected() -> None:
    run_tool("promtool", "check", "config", PROMETHEUS / "prometheus.yml")
    for name in ("alerts_test.yml", "slo_test.yml"):
        run_tool("promtool", "test", "rules", REPOSITORY / "tests" / "deploy" / name)


def test_every_alert_is_tested() -> None:
    tests = "".join((REPOSITORY / "tests" / "deploy" / f"{name}_test.yml").read_text() for name in ("alerts", "slo"))
    expected = re.findall(r"alertname: (\w+)\n\s+exp_alerts:", tests)
    assert set(expected) == {rule["alert"] for rule in RULES if "alert" in rule}


def test_compose_file_is_valid() -> None:
    run_tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yml")


def test_compose_publishes_ports_only_on_this_machine_by_default() -> None:
    ports = [str(port) for service in compose()["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith(("127.0.0.1:", "${BIND:-127.0.0.1}:")) for port in ports)


def test_only_the_replicas_can_reach_redis_and_redis_requires_a_password() -> None:
    services, networks = compose()["services"], compose()["networks"]
    assert networks["redis"] == {"internal": True}
    members = {name for name, service in services.items() if "redis" in service.get("networks", [])}
    assert members == {"redis", "replica-1", "replica-2"}
    assert services["redis"]["networks"] == ["redis"]
    assert "ports" not in services["redis"]
    assert "requirepass $$REDISCLI_AUTH" in services["redis"]["command"][-1]
    assert services["redis"]["environment"]["REDISCLI_AUTH"] == "$REDIS_PASSWORD"
    for name in ("replica-1", "replica-2"):
        assert "${REDIS_PASSWORD:?" in services[name]["environment"]["RECOLLECT_REDIS_URL"]


def test_containers_run_without_privileges() -> None:
    for name, service in compose()["services"].items():
        assert (service["cap_drop"], service["read_only"]) == (["ALL"], True), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name


@pytest.mark.parametrize("name", ["none.yml", "webhook.example.yml"])
def test_alertmanager_accepts_the_configuration(name: str) -> None:
    run_tool("amtool", "check-config", DEPLOY / "alertmanager" / name)


def test_alertmanager_can_read_one_file_of_the_machine() -> None:
    (config, data) = compose()["services"]["alertmanager"]["volumes"]
    assert config["source"] == "./alertmanager/${ALERT_RECEIVER:-none}.yml"
    assert config["read_only"]
    assert not config["bind"]["create_host_path"]  # otherwise Docker creates a folder if the file is missing
    assert data == "alertmanager:/alertmanager"


def test_nginx_and_prometheus_use_the_replica_addresses_from_the_compose_file() -> None:
    services = compose()["services"]
    replicas = [name for name in services if name.startswith("replica-")]
    port = ServeSettings.model_fields["port"].default
    variables = services["nginx"]["environment"]
    known = [variables[each] for each in sorted(variables) if each.startswith("REPLICA_")]
    assert known == [f"{services[name]['networks']['default']['ipv4_address']}:{port}" for name in replicas]
    prometheus = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    (scraped,) = prometheus["scrape_configs"][0]["static_configs"]
    assert scraped["targets"] == [f"{name}:{port}" for name in replicas]


def test_every_file_mounted_by_the_compose_file_exists() -> None:
    mounts = [mount for service in compose()["services"].values() for mount in service.get("volumes", [])]
    sources = [mount.partition(":")[0] if isinstance(mount, str) else mount["source"] for mount in mounts]
    sources = [source.replace("${ALERT_RECEIVER:-none}", "none") for source in sources]
    files = [DEPLOY / source for source in sources if source.startswith("./") and "." in source[2:]]
    assert files
    assert all(path.is_file() for path in files)


@pytest.mark.parametrize("name", [".env", "service.env", "keys/api-keys", "alertmanager/webhook.yml"])
def test_git_ignores_files_with_secrets_next_to_the_example_files(name: str) -> None:
    assert run_tool("git", "check-ignore", f"deploy/{name}")
