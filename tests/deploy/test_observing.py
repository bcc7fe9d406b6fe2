"""The dashboard and the alerts: each expression is PromQL, and names metrics, labels and states that servers have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from corosrv.fleet.cluster.health import ClusterCollector, LinkHealth
from corosrv.models.plan import ModelState
from tests.serve.server import REPOSITORY, SERVE, servers
from tests.serve.wire import chat, request
from tests.support.scripted_upstream import ScriptedUpstream, fails_with
from tests.support.waiting import eventually

DEPLOY = REPOSITORY / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "corosrv.json").read_text())
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
SCRAPE = yaml.safe_load((DEPLOY / "prometheus" / "scrape.yaml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
OF_PROMETHEUS = {"instance", "job"}  # labels that it adds itself
# Of metrics whose samples tell of what is the case alone.
STATES = {"corosrv_model_state": {state.value for state in ModelState}}

Labels = dict[str, dict[str, set[str]]]  # the values of each label of each metric


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Labels:
    """What a server tells that has a model, an application, a predictor, gRPC, traces and an upstream that fails."""
    folder = tmp_path_factory.mktemp("observed")
    upstream = ScriptedUpstream(fails_with(500), models=("far",))
    try:
        with servers(folder, folder) as started:
            server = started.start(
                *SERVE, str(DEPLOY / "app" / "basic.py:app"), "--grpc-port", "0",
                model="near=synthetic:", predictor="tests/predictors/tasks.py:Predictor", upstream=upstream.url,
                engine="process", traces=1, run_dir=folder / "run",
            )  # fmt: skip
            with server.connect() as client:
                eventually(lambda: client.post(chat(model="far")).status == 500, what="a failure of the upstream")
                client.post(chat(model="near", max_tokens=2))
                client.send(request("GET", "/metrics"))
                own = client.answer().body.decode()
    finally:
        upstream.close()
    shared = CollectorRegistry()
    shared.register(ClusterCollector(LinkHealth("redis:6379"), lambda: 0, lambda: [("upstream-1", 4)]))
    return {**labels_of(own), "up": {}, **labels_of(generate_latest(shared).decode())}


def labels_of(exposition: str) -> Labels:
    found: Labels = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return found


def parse(expression: str) -> Any:
    plain = expression.replace("$__rate_interval", "5m")
    return promql_parser.parse(plain)


def selectors(node: Any) -> Iterator[Any]:
    """Yields the metrics that an expression reads."""
    if type(node).__name__ == "VectorSelector":
        yield node
    for name in ("lhs", "rhs", "expr", "vector_selector"):
        if hasattr(node, name):
            yield from selectors(getattr(node, name))
    for argument in getattr(node, "args", ()):
        yield from selectors(argument)


def labels_after(node: Any, exposed: Labels) -> set[str]:
    """Returns the labels of an expression's result. Fails for a grouping by a label that its metric does not have."""
    kind = type(node).__name__
    if kind == "VectorSelector":
        return set(exposed[node.name]) | OF_PROMETHEUS
    if kind == "AggregateExpr":
        by = set(node.modifier.labels) if node.modifier is not None else set()
        assert by <= labels_after(node.expr, exposed), f"{node.prettify()}: by {by}"
        return by
    if kind == "BinaryExpr":
        sides = [labels_after(side, exposed) for side in (node.lhs, node.rhs) if type(side).__name__ != "NumberLiteral"]
        assert all(side == sides[0] for side in sides), f"{node.prettify()}: {sides}"
        return sides[0]
    inner = [labels_after(part, exposed) for part in parts_of(node)]
    return set().union(*inner) - ({"le"} if kind == "Call" and node.func.name == "histogram_quantile" else set())


def parts_of(node: Any) -> list[Any]:
    found = [getattr(node, name) for name in ("expr", "vector_selector") if hasattr(node, name)]
    return [part for part in (*found, *getattr(node, "args", ())) if type(part).__name__ != "NumberLiteral"]


def check(expression: str, exposed: Labels) -> set[str]:
    """Checks an expression, and returns the labels of its result."""
    tree = parse(expression)
    named = list(selectors(tree))
    assert named
    for selector in named:
        assert selector.name in exposed, f"{selector.name} is no metric of a server"
        labels = exposed[selector.name]
        for matcher in selector.matchers.matchers:
            assert matcher.name in labels or matcher.name in OF_PROMETHEUS, f"{selector.name} has no {matcher.name}"
            if matcher.name == "state" or matcher.name == "outcome":
                known = STATES.get(selector.name, labels[matcher.name])
                assert set(matcher.value.split("|")) <= known, f"{selector.name} is never {matcher.value}"
    return labels_after(tree, exposed)


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_panel_shows_what_servers_tell(title: str, target: dict[str, Any], exposed: Labels) -> None:
    labels = check(target["expr"], exposed)

    assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, title


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_names_what_servers_tell(rule: dict[str, Any], exposed: Labels) -> None:
    labels = check(rule["expr"], exposed)

    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels
    assert rule["labels"]["severity"] in ("critical", "warning")


def test_what_no_server_tells_is_noticed(exposed: Labels) -> None:
    for wrong in ("corosrv_unknown", 'corosrv_slots{nothing="1"}', "sum by (nothing) (corosrv_slots)",
                  'corosrv_model_state{state="never"}'):  # fmt: skip
        with pytest.raises(AssertionError):
            check(wrong, exposed)
    with pytest.raises(ValueError, match="unexpected"):
        parse("rate(corosrv_slots[5m)")


def test_the_dashboard_is_laid_out_and_its_variables_are_metrics_of_servers(exposed: Labels) -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    queries = [one["definition"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    asked = [re.fullmatch(r"label_values\((\w+), (\w+)\)", query) for query in queries]

    assert len(set(ids)) == len(set(places)) == len(DASHBOARD["panels"])
    assert all(panel["description"] for panel in PANELS)
    assert all(one and one[2] in exposed[one[1]].keys() | OF_PROMETHEUS for one in asked)


def test_the_scrape_reads_the_alerts_that_lie_beside_it() -> None:
    (job,) = SCRAPE["scrape_configs"]

    assert [(DEPLOY / "prometheus" / file).exists() for file in SCRAPE["rule_files"]] == [True]
    assert (job["job_name"], job["metrics_path"]) == ("corosrv", "/metrics")
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(("what", "file"), [("rules", "alerts.yaml"), ("config", "scrape.yaml")])
def test_promtool_takes_the_files(what: str, file: str) -> None:
    program = shutil.which("promtool") or pytest.skip("there is no promtool")
    checked = subprocess.run(
        [program, "check", what, str(Path(DEPLOY / "prometheus" / file))],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert checked.returncode == 0, checked.stdout + checked.stderr
