"""Kinds of operators (Prometheus, Gateway API), which kubernetes-validate does not know: read into strict values.

Each class holds the fields that the chart may use, by the operator's own definition; an unknown field is an error.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
import pytest
import yaml

from tests.charts import tools
from tests.data import ROOT

_DURATION = r"^([0-9]+(h|m|s|ms))+$"


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Only what is declared may stand in it."""


class Metadata(Strict):
    name: str
    namespace: str
    labels: dict[str, str]
    annotations: dict[str, str] = {}


class Selector(Strict):
    match_labels: dict[str, str]


class Endpoint(Strict):
    port: str
    path: str
    interval: str = msgspec.field(default="30s")
    scrape_timeout: str = msgspec.field(default="10s")


class ServiceMonitorSpec(Strict):
    selector: Selector
    endpoints: tuple[Endpoint, ...]


class ServiceMonitor(Strict):
    api_version: Literal["monitoring.coreos.com/v1"]
    kind: Literal["ServiceMonitor"]
    metadata: Metadata
    spec: ServiceMonitorSpec


class Rule(Strict, rename=None):
    expr: str
    record: str = ""
    alert: str = ""
    # `for` is a word of Python
    lasting: str = msgspec.field(default="", name="for")
    keep_firing_for: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Group(Strict, rename=None):
    name: str
    rules: tuple[Rule, ...]
    interval: str = ""


class PrometheusRuleSpec(Strict):
    groups: tuple[Group, ...]


class PrometheusRule(Strict):
    api_version: Literal["monitoring.coreos.com/v1"]
    kind: Literal["PrometheusRule"]
    metadata: Metadata
    spec: PrometheusRuleSpec


class ParentRef(Strict):
    name: str
    namespace: str = ""
    section_name: str = ""


class PathMatch(Strict):
    type: Literal["Exact", "PathPrefix"]
    value: str


class Match(Strict):
    path: PathMatch


class Timeouts(Strict):
    request: str
    backend_request: str


class BackendRef(Strict):
    name: str
    port: int


class RouteRule(Strict):
    matches: tuple[Match, ...]
    timeouts: Timeouts
    backend_refs: tuple[BackendRef, ...]


class HTTPRouteSpec(Strict):
    parent_refs: tuple[ParentRef, ...]
    rules: tuple[RouteRule, ...]
    hostnames: tuple[str, ...] = ()


class HTTPRoute(Strict):
    api_version: Literal["gateway.networking.k8s.io/v1"]
    kind: Literal["HTTPRoute"]
    metadata: Metadata
    spec: HTTPRouteSpec


def test_the_service_monitor_finds_the_service_and_its_port() -> None:
    monitor = msgspec.convert(tools.one("postgresql", "ServiceMonitor"), ServiceMonitor)
    service = tools.one("postgresql", "Service")
    assert monitor.spec.selector.match_labels.items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor.spec.endpoints
    assert endpoint.port in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint.path == "/metrics"
    assert re.match(_DURATION, endpoint.interval)
    assert monitor.metadata.labels["release"] == "prometheus"


def test_the_rules_are_what_the_operator_takes() -> None:
    rules = msgspec.convert(tools.one("postgresql", "PrometheusRule"), PrometheusRule).spec.groups
    sources = sorted((ROOT / "grafana" / "rules").glob("*.yaml"))
    written = [group for path in sources for group in yaml.safe_load(path.read_text())["groups"]]
    assert rules == msgspec.convert(written, tuple[Group, ...]) != ()
    assert len({group.name for group in rules}) == len(rules)
    for rule in (rule for group in rules for rule in group.rules):
        assert bool(rule.record) != bool(rule.alert)
        assert not rule.lasting or re.match(_DURATION, rule.lasting)


def test_the_route_leads_to_the_service_and_cuts_no_stream() -> None:
    route = msgspec.convert(tools.one("postgresql", "HTTPRoute"), HTTPRoute)
    (rule,) = route.spec.rules
    service = tools.one("postgresql", "Service")
    assert [(each.name, each.port) for each in rule.backend_refs] == [
        (service["metadata"]["name"], service["spec"]["ports"][0]["port"])
    ]
    assert rule.timeouts == Timeouts(request="0s", backend_request="0s")


def test_the_ingress_buffers_nothing_and_waits_as_long_as_a_call_may_take() -> None:
    from proxy.settings import Deadlines

    annotations = tools.one("openshift", "Ingress")["metadata"]["annotations"]
    nginx = {key.rpartition("/")[2]: value for key, value in annotations.items()}
    assert nginx["proxy-buffering"] == nginx["proxy-request-buffering"] == "off"
    assert int(nginx["proxy-read-timeout"]) >= Deadlines().total


@pytest.mark.parametrize("route", ["Ingress", "HTTPRoute"])
def test_only_the_api_is_reached_from_outside(route: str) -> None:
    """/metrics is open to all who reach the port, so no route leads to it."""
    spec: Any = tools.one("openshift" if route == "Ingress" else "postgresql", route)["spec"]
    paths = (
        [path["path"] for rule in spec["rules"] for path in rule["http"]["paths"]]
        if route == "Ingress"
        else [match["path"]["value"] for rule in spec["rules"] for match in rule["matches"]]
    )
    assert paths == ["/v1"]


def test_each_dashboard_is_a_config_map_that_the_sidecar_finds() -> None:
    found = [
        each
        for each in tools.objects("postgresql")
        if each["kind"] == "ConfigMap" and each["metadata"]["labels"].get("grafana_dashboard") == "1"
    ]
    shipped = sorted((tools.CHART / "files" / "dashboards").glob("*.json"))
    assert [next(iter(each["data"])) for each in found] == [path.name for path in shipped]
    for each, path in zip(found, shipped, strict=True):
        (text,) = each["data"].values()
        assert msgspec.json.decode(text) == msgspec.json.decode(path.read_bytes())
        assert len(text) < 900_000, "a ConfigMap holds a mebibyte"
