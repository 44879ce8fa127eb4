"""The rendered pod, executed: its files, its environment and its arguments start the real gateway.

No cluster can run here. What Kubernetes would do is little: lay files, set variables, ask two paths, send a signal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.charts import kubelet, tools
from tests.charts.kubelet import files, lay
from tests.charts.serving import Serving, serving

CASE = "postgresql"
DATABASE = ("--set", "database.engine=sqlite", "--set", "autoscaling.enabled=false")
"""The fullest values, on a file; test_replicas.py runs them on PostgreSQL."""
KEY = "secret-of-TEAM_A_KEY"


@pytest.fixture(scope="module")
def etc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tools.need("helm4")
    folder = tmp_path_factory.mktemp("etc")
    lay(files(CASE, *DATABASE), folder)
    return folder


@pytest.fixture(scope="module")
def pod(etc: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    container = kubelet.container(CASE, "Deployment", *DATABASE)
    data = tmp_path_factory.mktemp("data")
    arguments = [each.replace("/etc/weirgate", str(etc)) for each in container["args"]]
    told = {**kubelet.environment(container), "WEIRGATE_STORE__URL": f"sqlite:///{data}/weirgate.db"}
    with serving(arguments, data, told) as gateway:
        yield gateway


def test_it_starts_and_answers_its_probes(pod: Serving) -> None:
    container = kubelet.container(CASE, "Deployment", *DATABASE)
    paths = [container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")]
    assert [pod.ask(path).status for path in paths] == [200, 200, 200]


def test_the_service_monitors_path_is_scraped(pod: Serving) -> None:
    answer = pod.ask(tools.one(CASE, "ServiceMonitor")["spec"]["endpoints"][0]["path"])
    assert (answer.status, b"weirgate_" in answer.body) == (200, True)


def test_the_keys_of_the_secret_open_it_and_nothing_else_does(pod: Serving) -> None:
    assert pod.ask("/v1/models").status == 401
    assert pod.ask("/v1/models", key=KEY).status == 200
    assert pod.ask("/v1/weirgate/keys", key="secret-of-WEIRGATE_ADMIN").status == 200


def test_the_policies_that_the_values_state_are_in_force(pod: Serving) -> None:
    request = {"model": "qwen-small", "messages": [{"role": "user", "content": "Hello."}]}
    answer = pod.ask("/v1/weirgate/explain", request, key=KEY)
    assert answer.status == 200, answer.body
    assert b"131072" in answer.body


def test_the_agents_and_their_prompts_are_there_and_braces_are_braces(pod: Serving) -> None:
    request = {"model": "support", "messages": [{"role": "user", "content": "Hello."}]}
    answer = pod.ask("/v1/weirgate/explain", {**request, "body": True}, key=KEY)
    assert answer.status == 200, answer.body


def test_changed_policies_and_prompts_are_taken_up_by_the_running_pod(pod: Serving, etc: Path) -> None:
    change = ("--set", "policies.files.qwen\\.yaml.window=65536")
    lay(files(CASE, *DATABASE, *change), etc)
    pod.until("policies replaced")
    request = {"model": "qwen-small", "messages": [{"role": "user", "content": "Hello."}]}
    assert b"65536" in pod.ask("/v1/weirgate/explain", request, key=KEY).body


def test_a_broken_policy_changes_nothing_and_is_said(pod: Serving, etc: Path) -> None:
    broken = files(CASE, *DATABASE)
    broken["policies/qwen.yaml"] = "match: [unclosed"
    lay(broken, etc)
    pod.until("policies kept as they were")
    assert pod.ask("/readyz").status == 200


def test_it_leaves_with_zero_within_the_grace_that_kubernetes_gives(pod: Serving, etc: Path) -> None:
    grace = tools.one(CASE, "Deployment", *DATABASE)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    delay = yaml.safe_load((etc / "weirgate.yaml").read_text())["server"]["drain_delay"]
    assert delay < 30 < grace
    pod.child.terminate()
    # Until the delay is over it serves, and says that it is not ready.
    while pod.ask("/readyz").status == 200:
        pass
    assert pod.ask("/healthz").status == 200
    assert pod.child.wait(delay + 15) == 0
