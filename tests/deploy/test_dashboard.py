"""The Grafana dashboard: valid queries, and the data source of its panels."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.deploy.helpers import DEPLOY, run_tool

DASHBOARD = json.loads((DEPLOY / "grafana" / "recollect.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = {
    f"{panel['title']} {target['refId']}": str(target["expr"]) for panel in PANELS for target in panel["targets"]
} | {each["name"]: str(each["expr"]) for each in DASHBOARD["annotations"]["list"]}


def test_every_query_of_the_dashboard_is_valid(tmp_path: Path) -> None:
    variables = {"$__rate_interval": "1m", "$instance": ".*"}
    rules = []
    for number, query in enumerate(QUERIES.values()):
        for name, value in variables.items():
            query = query.replace(name, value)
        assert "$" not in query
        rules.append({"record": f"query:{number}", "expr": query})
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    run_tool("promtool", "check", "rules", path)
