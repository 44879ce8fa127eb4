"""`weirgate db` and `weirgate purge`, and the other commands where the database is PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.store import UsageQuery
from proxy.store.address import from_url
from proxy.store.migrations import HEAD
from tests.commands.conftest import Cli, gateway, here
from tests.postgres import Cluster
from tests.store.samples import row

NOW = time.time()
DAY = 86_400.0
PASSWORD = "never-to-be-shown"


@pytest.fixture
def empty(cluster: Cluster) -> Iterator[str]:
    """The address of an empty database, with a password in it that the server does not ask for."""
    url = cluster.create("commands")
    yield url.replace("@", f":{PASSWORD}@")
    cluster.drop("commands")


def configured(url: str, *more: str) -> None:
    Path("weirgate.yaml").write_text("\n".join(["store:", f"  url: {url}", *(f"  {line}" for line in more)]) + "\n")


def keep(url: str, *ages: float) -> None:
    """A usage row of each age, in days."""

    async def write() -> None:
        store = from_url(url)
        await store.open(NOW)
        for age in ages:
            await store.close_row(row(f"row{age}", status="ok", opened_at=NOW - age * DAY))
        await store.close()

    asyncio.run(write())


def kept(url: str) -> set[str]:
    async def read() -> set[str]:
        store = from_url(url)
        await store.open(NOW)
        try:
            return {each.id for each in await store.usage(UsageQuery())}
        finally:
            await store.close()

    return asyncio.run(read())


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, cli: Cli) -> str:
    if request.param == "sqlite":
        return "sqlite:///weirgate.db"
    found: str = request.getfixturevalue("empty")
    return found


def test_an_upgrade_makes_the_database_and_a_second_one_leaves_it(cli: Cli, url: str) -> None:
    configured(url, "migrate: false")
    refused = cli("usage")
    assert refused.exit_code == 1, here(refused)
    for _ in range(2):
        done = cli("db", "upgrade")
        assert done.exit_code == 0 and f"at schema {HEAD}" in done.stderr, here(done)
    assert cli("usage").exit_code == 0
    assert PASSWORD not in refused.output + refused.stderr + done.stderr


def test_a_server_that_may_not_change_the_schema_refuses_and_says_what_to_run(cli: Cli, url: str) -> None:
    configured(url, "migrate: false")
    refused = cli("serve", "--upstream", "http://127.0.0.1:1/v1", "--port", "0", "--config", "weirgate.yaml")
    assert refused.exit_code == 2 and "weirgate db upgrade" in refused.stderr, here(refused)
    assert PASSWORD not in refused.stderr


def test_a_purge_takes_what_is_old_and_says_how_much(cli: Cli, url: str) -> None:
    keep(url, 1, 40, 100)
    configured(url)
    done = cli("purge", "--older-than", "90d")
    assert (done.exit_code, done.stdout) == (0, "1\n"), here(done)
    assert kept(url) == {"row1", "row40"}
    day = time.strftime("%Y-%m-%d", time.gmtime(NOW - 20 * DAY))
    assert cli("purge", "--before", day, "--tenant", "other").stdout == "0\n"
    assert cli("purge", "--before", day, "--tenant", "t").stdout == "1\n"
    assert kept(url) == {"row1"}


@pytest.mark.parametrize("asked", [(), ("--before", "2026-01-01", "--older-than", "1d"), ("--before", "soon")])
def test_a_purge_must_be_told_what_is_old(cli: Cli, asked: tuple[str, ...]) -> None:
    result = cli("purge", *asked)
    assert result.exit_code == 2 and result.stdout == ""


def test_a_file_that_a_server_holds_is_not_purged_beside_it(cli: Cli, provider: str, tmp_path: Path) -> None:
    with gateway("--upstream", f"{provider}/v1", "--port", "0", cwd=tmp_path) as (root, _):
        result = cli("purge", "--older-than", "1d", WEIRGATE_SERVER__PORT=root.rpartition(":")[2])
    assert result.exit_code == 1 and "stop it first" in result.stderr, here(result)


def test_the_doctor_and_the_keys_work_on_postgresql_and_show_no_password(cli: Cli, empty: str) -> None:
    configured(empty)
    early = cli("doctor", "--format", "json")
    assert "db upgrade" in json.dumps(json.loads(early.stdout)["findings"])
    made = cli("keys", "add", "--tenant", "acme", "--id", "ci")
    assert made.exit_code == 0, here(made)
    assert cli("keys", "list").stdout.splitlines()[1].split()[:2] == ["ci", "acme"]
    looked = cli("doctor", "--format", "json")
    found = {each["name"]: each for each in json.loads(looked.stdout)["findings"]}
    assert "sqlite" not in found
    assert "PostgreSQL" in found["database"]["found"] and "fsync is off" in found["database"]["found"]
    usage = cli("usage")
    assert usage.exit_code == 0 and "/commands" in usage.stderr, here(usage)
    said = [early.stdout, made.stderr, looked.stdout, usage.stderr]
    assert not [each for each in said if PASSWORD in each]


def test_a_database_that_is_not_there_is_one_line_and_a_step(cli: Cli) -> None:
    configured(f"postgresql://me:{PASSWORD}@127.0.0.1:1/weirgate")
    looked = cli("doctor", "--format", "json")
    found = {each["name"]: each for each in json.loads(looked.stdout)["findings"]}["database"]
    assert found["state"] == "fail" and "cannot be reached" in found["found"]
    assert "postgresql://127.0.0.1:1/weirgate" in found["next"]
    usage = cli("usage")
    assert usage.exit_code == 1 and usage.stderr.count("\n") <= 2, here(usage)
    assert PASSWORD not in looked.stdout + usage.stderr
