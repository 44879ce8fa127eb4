"""The chart on PostgreSQL, executed: the migration's Job, then two pods, one of which leaves while the other serves."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import postgres
from tests.charts import kubelet, tools
from tests.charts.serving import serving
from tests.clients.weir import COMMAND

CASE = "postgresql"
KEY = "secret-of-TEAM_A_KEY"


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Cluster]:
    tools.need("helm4")
    if reason := postgres.absent():
        pytest.skip(reason)
    with postgres.cluster() as server:
        yield server


@pytest.fixture(scope="module")
def migrated(server: postgres.Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a database after the Job ran, twice as for an installation and an upgrade."""
    # The server trusts everybody on this machine; the password is there to be looked for in what is said.
    database = server.create("weirgate").replace("@", ":secret-of-PGPASSWORD@")
    for _ in range(2):
        done = run("Job", database, tmp_path_factory.mktemp("job"))
        assert done.returncode == 0, done.stderr
        assert "secret-of-PGPASSWORD" not in done.stdout + done.stderr
    return database


@pytest.fixture(scope="module")
def etc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tools.need("helm4")
    folder = tmp_path_factory.mktemp("etc")
    # Short, for the test's own sake; test_running.py leaves with the chart's delay.
    kubelet.lay(kubelet.files(CASE, "--set", "config.server.drain_delay=1"), folder)
    return folder


def run(kind: str, database: str, folder: Path, etc: Path = Path("/etc/weirgate")) -> subprocess.CompletedProcess[str]:
    """The container of a Job or Deployment until it ends."""
    container = kubelet.container(CASE, kind)
    told = kubelet.environment(container, {"WEIRGATE_DATABASE_URL": database})
    return subprocess.run(
        [str(COMMAND), *(each.replace("/etc/weirgate", str(etc)) for each in container["args"])],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "WEIRGATE_SERVER__HOST": "127.0.0.1", "WEIRGATE_SERVER__PORT": "0", **told},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_a_pod_before_the_migration_does_not_start_and_says_what_to_do(
    server: postgres.Cluster, etc: Path, tmp_path: Path
) -> None:
    done = run("Deployment", server.create("empty"), tmp_path, etc)
    assert done.returncode != 0
    assert "weirgate db upgrade" in done.stderr


def test_a_pod_is_replaced_while_another_one_serves(migrated: str, etc: Path, tmp_path: Path) -> None:
    container = kubelet.container(CASE, "Deployment")
    arguments = [each.replace("/etc/weirgate", str(etc)) for each in container["args"]]
    told = kubelet.environment(container, {"WEIRGATE_DATABASE_URL": migrated})
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    with serving(arguments, folders[0], told) as old, serving(arguments, folders[1], told) as new:
        assert [pod.ask("/readyz").status for pod in (old, new)] == [200, 200]
        old.child.terminate()
        while old.ask("/readyz").status == 200:
            pass
        assert new.ask("/v1/models", key=KEY).status == new.ask("/readyz").status == 200
        assert old.ask("/v1/models", key=KEY).status == 200, "it serves until its delay is over"
        assert old.child.wait(30) == 0
        assert new.ask("/v1/weirgate/usage", key=KEY).status == 200
