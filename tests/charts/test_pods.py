"""What a platform team demands of every pod, and that leaving takes as long as streams do."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import yaml

from tests.charts import tools

ALL = [*((case, kind) for case in tools.CASES for kind in ("Deployment", "Pod")), ("postgresql", "Job")]
"""Every pod that the chart makes: only PostgreSQL has a migration."""


def made(case: str, kind: str) -> Any:
    return dict(tools.pods(case))[kind]


def test_no_pod_is_forgotten() -> None:
    assert {(case, kind) for case in tools.CASES for kind, _ in tools.pods(case)} == set(ALL)


@pytest.mark.parametrize(("case", "kind"), ALL)
def test_every_pod_has_no_rights_and_no_token(case: str, kind: str) -> None:
    """The Pod Security Standard "restricted", and more."""
    pod = made(case, kind)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    kinds = {kind for volume in pod.get("volumes", ()) for kind in volume if kind != "name"}
    assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim", "projected"}
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is context["privileged"] is False


@pytest.mark.parametrize(("case", "kind"), ALL)
def test_every_pod_says_what_it_needs_and_which_image_it_is(case: str, kind: str) -> None:
    pod = made(case, kind)
    for container in pod["containers"]:
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]
        image = container["image"]
        assert re.search(r"(:[0-9][\w.-]*|@sha256:[0-9a-f]{64})$", image), image


@pytest.mark.parametrize("case", tools.CASES)
def test_the_gateway_is_asked_whether_it_started_lives_and_is_ready(case: str) -> None:
    (container,) = made(case, "Deployment")["containers"]
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    (port,) = container["ports"]
    assert all(container[f"{name}Probe"]["httpGet"]["port"] == port["name"] for name in paths)


@pytest.mark.parametrize("case", tools.CASES)
def test_kubernetes_waits_longer_than_the_gateway_may_take_to_leave(case: str) -> None:
    pod = made(case, "Deployment")
    (container,) = pod["containers"]
    hook = container.get("lifecycle", {"preStop": {"sleep": {"seconds": 0}}})["preStop"]["sleep"]["seconds"]
    server = configuration(case)["server"]
    longest = hook + math.ceil(server["drain_delay"]) + math.ceil(server["drain"])
    assert longest + 10 <= pod["terminationGracePeriodSeconds"] <= longest + 30


@pytest.mark.parametrize("case", tools.CASES)
def test_what_is_written_goes_to_volumes_and_what_is_read_cannot_be_written(case: str) -> None:
    pod = made(case, "Deployment")
    (container,) = pod["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/etc/weirgate"]["readOnly"] is True
    assert {"/tmp", "/var/lib/weirgate"} <= mounts.keys()
    assert not any("subPath" in mount for mount in mounts.values()), "a subPath never sees a change"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    kept = "persistentVolumeClaim" in volumes["data"]
    assert kept is (case == "sqlite")


def configuration(case: str, *arguments: str) -> Any:
    return yaml.safe_load(tools.one(case, "ConfigMap", *arguments, name="rel-weirgate")["data"]["weirgate.yaml"])


def test_sqlite_is_one_pod_that_goes_before_the_next_one_comes() -> None:
    spec = tools.one("sqlite", "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    kinds = {each["kind"] for each in tools.objects("sqlite")}
    assert "PersistentVolumeClaim" in kinds
    assert not {"HorizontalPodAutoscaler", "PodDisruptionBudget", "Job"} & kinds
    claim = tools.one("sqlite", "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_postgresql_is_several_pods_replaced_one_after_the_other() -> None:
    without = ("--set", "autoscaling.enabled=false")
    spec = tools.one("postgresql", "Deployment", *without)["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert tools.one("postgresql", "PodDisruptionBudget", *without)["spec"]["maxUnavailable"] == 1
    assert "PersistentVolumeClaim" not in {each["kind"] for each in tools.objects("postgresql")}


def test_the_autoscaler_alone_decides_how_many_pods_there_are() -> None:
    assert "replicas" not in tools.one("postgresql", "Deployment")["spec"]
    scaler = tools.one("postgresql", "HorizontalPodAutoscaler")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 9)


def test_the_migration_runs_before_the_pods_and_needs_nothing_that_the_release_makes() -> None:
    job = tools.one("postgresql", "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["db", "upgrade"]
    assert "serviceAccountName" not in pod
    assert [volume.keys() - {"name", "emptyDir"} for volume in pod["volumes"]] == [set()]
    selector = tools.one("postgresql", "Service")["spec"]["selector"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert not selector.items() <= labels.items(), "the Service would send clients to it"


def test_the_pods_leave_the_schema_to_the_migration_where_there_is_one() -> None:
    assert configuration("postgresql")["store"]["migrate"] is False
    assert "migrate" not in configuration("postgresql", "--set", "migration.enabled=false")["store"]
    assert configuration("postgresql", "--set", "config.store.migrate=true")["store"]["migrate"] is True
    assert "migrate" not in configuration("sqlite")["store"]


def test_the_migration_may_be_another_user_of_the_database_than_the_pods() -> None:
    other = ("--set", "migration.existingSecret=owner", "--set", "migration.secretKey=url")

    def address(kind: str, *arguments: str) -> dict[str, str]:
        (container,) = tools.one("postgresql", kind, *arguments)["spec"]["template"]["spec"]["containers"]
        (found,) = [each for each in container["env"] if each["name"] == "WEIRGATE_DATABASE_URL"]
        return dict(found["valueFrom"]["secretKeyRef"])

    assert address("Job") == address("Deployment") == {"name": "cluster-app", "key": "uri"}
    assert address("Job", *other) == {"name": "owner", "key": "url"}
    assert address("Deployment", *other) == {"name": "cluster-app", "key": "uri"}


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_a_proxy_to_the_database_runs_beside_the_gateway_and_beside_the_migration(kind: str) -> None:
    (sidecar,) = made("postgresql", kind)["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("database-proxy", "Always")


def test_the_selectors_find_the_gateways_pods_and_never_change_with_the_version() -> None:
    deployment = tools.one("postgresql", "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        tools.one("postgresql", "Service")["spec"]["selector"],
        tools.one("postgresql", "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        tools.one("postgresql", "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *(
            each["labelSelector"]["matchLabels"]
            for each in deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
        ),
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert not any("version" in key or "chart" in key for selector in selectors for key in selector)


@pytest.mark.parametrize(
    ("change", "restarts"),
    [
        ("config.server.hold=7", True),
        ("policies.files.qwen\\.yaml.window=4096", False),
        ("agents.support\\.yaml.model=other-model", False),
        ("prompts.support\\.md=Be long.", False),
    ],
)
def test_only_what_is_read_once_restarts_the_pods(change: str, restarts: bool) -> None:
    before = tools.one("postgresql", "Deployment")["spec"]["template"]
    after = tools.one("postgresql", "Deployment", "--set", change)["spec"]["template"]
    assert (before != after) is restarts
    assert tools.objects("postgresql") != tools.objects("postgresql", "--set", change), "the change went nowhere"


def test_numbers_reach_the_gateway_as_numbers_however_large() -> None:
    told = configuration("postgresql")
    assert (told["window"], told["server"]["limits"]["body"]) == (1_000_000, 67_108_864)
