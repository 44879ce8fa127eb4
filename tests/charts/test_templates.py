"""The chart as Helm 3 and Helm 4 read it, with each committed set of values, and as Kubernetes would."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
import yaml

from proxy import __version__
from tests import house
from tests.charts import tools
from tests.data import ROOT

EVERY = [(helm, case) for helm in tools.HELMS for case in tools.CASES]
OPERATORS = {"HTTPRoute", "PrometheusRule", "ServiceMonitor"}
"""Kinds that Kubernetes itself does not know; test_operators.py reads them."""


def test_there_are_values_for_both_databases_and_for_a_platform_that_gives_user_ids() -> None:
    assert set(tools.CASES) >= {"sqlite", "postgresql", "openshift"}


@pytest.mark.parametrize("helm", tools.HELMS)
def test_the_linter_finds_nothing_in_the_chart_as_it_is(helm: str) -> None:
    said = tools.run(helm, "lint", "--strict", tools.CHART)
    assert said.status == 0, said.out


@pytest.mark.parametrize(("helm", "case"), EVERY)
def test_the_linter_finds_nothing(helm: str, case: str) -> None:
    said = tools.run(helm, "lint", "--strict", tools.CHART, "--values", tools.values_of(case))
    assert (said.status, "[ERROR]" in said.out, "[WARNING]" in said.out) == (0, False, False), said.out


@pytest.mark.parametrize("case", tools.CASES)
def test_both_helms_make_the_same_of_it(case: str) -> None:
    first, second = (tools.rendered(helm, case) for helm in tools.HELMS)
    assert first == second


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("case", tools.CASES)
def test_kubernetes_would_take_every_object(case: str, version: str, tmp_path: Path) -> None:
    """The oldest that the chart claims, and the newest that is known."""
    assert yaml.safe_load((tools.CHART / "Chart.yaml").read_text())["kubeVersion"] == ">=1.30.0-0"
    known = [each for each in tools.objects(case) if each["kind"] not in OPERATORS]
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(known))
    said = tools.run("kubernetes-validate", "--kubernetes-version", version, "--strict", file)
    assert said.status == 0, said.out + said.err
    assert "WARN" not in said.out + said.err, "a kind without a schema: add it to OPERATORS and test_operators.py"


def test_a_misspelt_field_would_be_found(tmp_path: Path) -> None:
    service = json.loads(json.dumps(tools.one("sqlite", "Service")))
    service["spec"]["prots"] = service["spec"].pop("ports")
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump(service))
    assert tools.run("kubernetes-validate", "--strict", file).status == 1


@pytest.mark.parametrize("helm", tools.HELMS)
def test_the_package_holds_what_the_templates_read_and_nothing_for_tests(helm: str, tmp_path: Path) -> None:
    said = tools.run(helm, "package", tools.CHART, "--destination", tmp_path)
    assert said.status == 0, said.err
    (archive,) = tmp_path.glob("*.tgz")
    again = tools.run(helm, "template", tools.RELEASE, archive, "-n", tools.NAMESPACE, "-f", tools.values_of("sqlite"))
    assert again.out == tools.rendered(helm, "sqlite")
    with tarfile.open(archive) as packed:
        assert [name for name in packed.getnames() if "/ci/" in name] == []


def test_every_shipped_policy_is_in_it_and_a_stated_one_takes_its_place() -> None:
    shipped = {path.name: path.read_text() for path in (ROOT / "policies").glob("*.yaml")}
    plain, stated = (
        tools.one(case, "ConfigMap", name="rel-weirgate-policies")["data"] for case in ("sqlite", "postgresql")
    )
    assert plain.keys() == stated.keys() == shipped.keys()
    assert {name for name in shipped if plain[name].rstrip() != shipped[name].rstrip()} == set()
    assert {name for name in shipped if stated[name].rstrip() != shipped[name].rstrip()} == {"qwen.yaml"}


def test_nothing_that_is_made_from_something_else_is_stale() -> None:
    status, said = house.run("python", "scripts/chart.py", "--check")
    assert status == 0, said


def test_the_chart_installs_this_version() -> None:
    assert yaml.safe_load((tools.CHART / "Chart.yaml").read_text())["appVersion"] == __version__


@pytest.mark.parametrize("case", tools.CASES)
def test_no_two_objects_have_one_name_and_every_name_is_the_releases(case: str) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in tools.objects(case)]
    assert len(names) == len(set(names))
    assert all(name.startswith(f"{tools.RELEASE}-weirgate") for _, name in names)
    assert all(each["metadata"]["namespace"] == tools.NAMESPACE for each in tools.objects(case))


def test_a_long_release_name_stays_within_what_kubernetes_takes() -> None:
    case, long = "postgresql", "a" * 53
    said = tools.run("helm4", "template", long, tools.CHART, "--values", tools.values_of(case))
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(said.out) if each]
    assert names and max(map(len, names)) <= 63


@pytest.mark.parametrize(("case", "said"), [("sqlite", "An upgrade interrupts service"), ("postgresql", "after 325 s")])
def test_the_notes_say_where_it_is_and_how_it_leaves(case: str, said: str) -> None:
    # Helm 4 alone: Helm 3 asks a cluster for its version even then.
    done = tools.run(
        "helm4", "install", tools.RELEASE, tools.CHART, "--dry-run=client", "--values", tools.values_of(case)
    )
    notes = done.out.partition("NOTES:")[2]
    host = "https://llm.example.com/v1" if case == "postgresql" else "http://rel-weirgate.default:8400/v1"
    assert said in notes
    assert f"    {host}\n" in notes
