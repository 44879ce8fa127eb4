"""compose.yaml without a container engine: by the Compose specification, by what it names, and by what reads its files.

The gateway starts with its configuration, and Prometheus's own tool reads what Prometheus would. Not run: the images.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy import __version__
from proxy.settings import load
from tests.charts import tools
from tests.charts.kubelet import lay
from tests.charts.serving import serving
from tests.clients.programs import in_ci
from tests.data import ROOT

FILE = ROOT / "compose.yaml"
OURS = ("migration", "gateway", "model")


def compose() -> Any:
    return yaml.safe_load(FILE.read_text())


def service(name: str) -> Any:
    return compose()["services"][name]


def mounts() -> Iterator[tuple[str, str, str]]:
    """Service, source and target of each folder or file of the checkout that is mounted."""
    for name, each in compose()["services"].items():
        for volume in each.get("volumes", ()):
            source, target, *_ = volume.split(":")
            if source.startswith("."):
                yield name, source, target


def environment(name: str) -> dict[str, str]:
    """Its variables with the defaults of the file."""
    return {
        key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for key, value in service(name).get("environment", {}).items()
    }


JUDGE = """
import sys, yaml
from compose_spec import PyCompose
PyCompose.from_yaml(yaml.safe_dump(yaml.safe_load(sys.stdin))).validate()
"""


def judged(text: str) -> tuple[int, str]:
    """What the Compose specification says of a file, once YAML's own merges are done."""
    tools.need("python")
    done = subprocess.run(
        [tools.BIN / "python", "-c", JUDGE], input=text, capture_output=True, text=True, timeout=30, check=False
    )
    return done.returncode, done.stderr


def test_it_is_what_the_specification_says() -> None:
    status, said = judged(FILE.read_text())
    assert status == 0, said


def test_a_misspelt_key_would_be_found() -> None:
    status, said = judged(FILE.read_text().replace("stop_grace_period", "stop_grace_priod"))
    assert (status, "stop_grace_priod" in said) == (1, True)


def test_everything_that_is_mounted_is_there_and_only_read() -> None:
    assert [source for _, source, _ in mounts() if not (ROOT / source).exists()] == []
    written = [
        volume for each in compose()["services"].values() for volume in each.get("volumes", ()) if volume[0] == "."
    ]
    assert [volume for volume in written if not volume.endswith(":ro")] == []


def test_every_variable_that_it_reads_has_a_default_and_is_explained() -> None:
    explained = (ROOT / "docs" / "deploying.md").read_text()
    read = re.findall(r"\$\{(\w+)(:-[^}]*)?\}", FILE.read_text())
    assert len(read) > 3
    assert [name for name, default in read if not default or f"`{name}`" not in explained] == []


def test_every_image_has_a_version_and_ours_is_this_one() -> None:
    images = {name: each["image"] for name, each in compose()["services"].items()}
    assert [image for image in images.values() if not re.search(r":v?\d[\w.-]*(@sha256:[0-9a-f]{64})?$", image)] == []
    assert {images[name].rpartition(":")[2] for name in OURS} == {__version__}


def test_nothing_can_be_reached_from_another_machine() -> None:
    ports = [port for each in compose()["services"].values() for port in each.get("ports", ())]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("name", OURS)
def test_what_is_ours_runs_without_rights(name: str) -> None:
    told = service(name)
    assert told["read_only"] is True
    assert told["cap_drop"] == ["ALL"]
    assert told["security_opt"] == ["no-new-privileges:true"]


def test_the_gateway_waits_for_its_schema_and_may_finish_what_runs() -> None:
    gateway = service("gateway")
    assert gateway["depends_on"] == {"migration": {"condition": "service_completed_successfully"}}
    assert service("migration")["command"] == ["db", "upgrade"]
    server = yaml.safe_load((ROOT / "compose" / "weirgate.yaml").read_text())["server"]
    assert int(gateway["stop_grace_period"].removesuffix("s")) >= server["drain_delay"] + server["drain"] + 10


def test_the_gateways_configuration_is_valid_with_the_variables_that_it_is_given() -> None:
    settings = load(ROOT / "compose" / "weirgate.yaml", environment("gateway"))
    (port,) = service("gateway")["ports"]
    assert port.endswith(f":{settings.server.port}")
    assert settings.store.url == environment("migration")["WEIRGATE_STORE__URL"]
    assert settings.policies is not None
    targets = {target for name, _, target in mounts() if name == "gateway"}
    assert f"/etc/weirgate/{settings.policies.name}" in targets


def test_the_demos_model_is_where_the_gateway_looks_and_has_the_window_that_it_believes() -> None:
    settings = load(ROOT / "compose" / "weirgate.yaml", environment("gateway"))
    assert service("model")["network_mode"] == "service:gateway"
    stage = (ROOT / "Dockerfile").read_text().partition(f" AS {service('model')['build']['target']}\n")[2]
    port, window = re.findall(r'model_server\.py", "(\d+)", "(\d+)"', stage)[0]
    assert settings.upstreams["model"].base_url == f"http://127.0.0.1:{port}/v1"
    assert settings.window == int(window)


def test_the_gateway_serves_with_it(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    mounted = {
        target.removeprefix("/etc/weirgate/"): ROOT / source for name, source, target in mounts() if name == "gateway"
    }
    texts = {
        f"{name}/{file.name}" if source.is_dir() else name: file.read_text()
        for name, source in mounted.items()
        for file in (sorted(source.glob("*.yaml")) if source.is_dir() else [source])
    }
    lay(texts, etc)
    file = {"WEIRGATE_STORE__URL": f"sqlite:///{tmp_path}/weirgate.db", "WEIRGATE_STORE__MIGRATE": "true"}
    told = {**environment("gateway"), **file}
    with serving(["serve", "--config", str(etc / "weirgate.yaml")], tmp_path, told) as gateway:
        assert gateway.ask("/readyz").status == 200
        assert gateway.ask("/v1/weirgate/usage", key=told["WEIRGATE_CLIENT_KEY"]).status == 200


def test_prometheus_reads_its_configuration_and_the_rules(tmp_path: Path) -> None:
    """With every file where the container has it."""
    for name, source, target in mounts():
        if name == "prometheus":
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copy(ROOT / source, tmp_path / Path(target).relative_to("/etc/prometheus"))
    scraped = yaml.safe_load((tmp_path / "prometheus.yml").read_text())["scrape_configs"]
    assert [each["static_configs"][0]["targets"] for each in scraped] == [["gateway:8400"]]
    assert list(tmp_path.glob("rules/*.yaml")), "no rules: nobody would be alerted"
    if shutil.which("promtool") is None:
        lack = "there is no promtool here: run `make boards`"
        pytest.fail(lack) if in_ci() else pytest.skip(lack)
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_finds_prometheus_and_its_dashboards() -> None:
    folder = ROOT / "compose" / "grafana"
    (source,) = yaml.safe_load((folder / "datasources.yaml").read_text())["datasources"]
    assert source["url"] == f"http://prometheus:{service('prometheus')['ports'][0].rpartition(':')[2]}"
    (provider,) = yaml.safe_load((folder / "dashboards.yaml").read_text())["providers"]
    (dashboards,) = [
        ROOT / source for name, source, target in mounts() if (name, target) == ("grafana", provider["options"]["path"])
    ]
    assert list(dashboards.glob("*.json"))
