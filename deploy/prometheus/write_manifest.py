"""Write the rules of alerts.yml and slo.yml as a manifest for the Prometheus Operator: `make rules`."""

from __future__ import annotations

from pathlib import Path

import yaml

FOLDER = Path(__file__).parent
MANIFEST = FOLDER.parent / "kubernetes" / "monitoring" / "prometheus-rule.yaml"
_HEADER = "# Written by `make rules` from deploy/prometheus/alerts.yml and slo.yml. Change those files instead.\n"


def manifest() -> str:
    """The content of the manifest."""
    groups = [
        group
        for name in ("alerts.yml", "slo.yml")
        for group in yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))["groups"]
    ]
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "recollect"},
        "spec": {"groups": groups},
    }
    return _HEADER + yaml.safe_dump(resource, sort_keys=False, width=1000)


if __name__ == "__main__":
    MANIFEST.write_text(manifest(), encoding="utf-8")
