"""Mistakes in values are found before anything is installed, in words that name the value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.charts import tools


class Mistake(NamedTuple):
    what: str
    set: tuple[str, ...]
    named: str
    case: str = "sqlite"


SCHEMA = [
    Mistake("a misspelt value", ("replcas=2",), "replcas"),
    Mistake("a value of another chart", ("image.registry=registry.example.com",), "registry"),
    Mistake("a tag where the name belongs", ("image.repository=registry.example.com/weirgate:1",), "repository"),
    Mistake("replicas as a word", ("replicas=two",), "replicas"),
    Mistake("no replicas at all", ("replicas=0",), "replicas"),
    Mistake("a database that it does not know", ("database.engine=mysql",), "engine"),
    Mistake("a switch that is a text", ("ingress.enabled=maybe",), "enabled"),
    Mistake("a port beyond the last", ("service.port=84000",), "port"),
    Mistake("a digest that is none", ("image.digest=sha256:abc",), "digest"),
    Mistake("root", ("runAs.user=0",), "user"),
    Mistake("memory without a request", ("resources.requests.memory=null",), "memory"),
    Mistake("a size without sense", ("persistence.size=large",), "size"),
    Mistake("an unknown key of weirgate.yaml", ("config.server.drian=300",), "drian"),
    Mistake("a key that the chart sets itself", ("config.server.host=127.0.0.1",), "host"),
    Mistake("a provider without an address", ("config.upstreams.other.api_key=x",), "base_url"),
    Mistake("a drain that is a text", ("config.server.drain=5m",), "drain"),
    Mistake("a policy beyond its range", ("policies.files.qwen\\.yaml.compact_at=0.99",), "compact_at"),
    Mistake("a policy file that nobody would read", ("policies.files.qwen.window=4096",), "qwen"),
    Mistake("an agent that leads nowhere", ("agents.support\\.yaml.instructions=x",), "model"),
    Mistake("a variable that no shell takes", ("secretEnv.provider-key=provider-key",), "provider-key"),
    Mistake("a probe with an unknown key", ("probes.liveness.period=3",), "period"),
]

REFUSED = [
    Mistake("no image", ("image.repository=",), "image.repository"),
    Mistake("an image that changes", ("image.tag=latest",), "image.tag"),
    Mistake("no provider", ("config.upstreams=null",), "config.upstreams"),
    Mistake("no client key", ("config.keys=null",), "config.keys"),
    Mistake("several pods on SQLite", ("replicas=2",), "replicas"),
    Mistake("autoscaling on SQLite", ("autoscaling.enabled=true",), "autoscaling"),
    Mistake(
        "keys in a database that goes with the pod",
        ("storedKeys=true", "config.keys=null", "persistence.enabled=false"),
        "storedKeys",
    ),
    Mistake(
        "PostgreSQL without its address",
        ("database.existingSecret=", "existingSecret=", "secretEnv=null", "extraEnvFrom[0].secretRef.name=elsewhere"),
        "database",
        "postgresql",
    ),
    Mistake("a volume for PostgreSQL", ("persistence.existingClaim=old",), "persistence.existingClaim", "postgresql"),
    Mistake("two who decide how many", ("replicas=3",), "replicas", "postgresql"),
    Mistake("fewest above most", ("autoscaling.minReplicas=10",), "minReplicas", "postgresql"),
    Mistake("an Ingress for nobody", ("ingress.enabled=true",), "ingress.hosts"),
    Mistake("a route of no Gateway", ("httpRoute.parentRefs=null",), "httpRoute.parentRefs", "postgresql"),
    Mistake(
        "a provider's key in a ConfigMap", ("config.upstreams.main.api_key=sk-1",), "config.upstreams.main.api_key"
    ),
    Mistake(
        "a provider's key in a header",
        ("config.upstreams.main.headers.api-key=sk-1",),
        "config.upstreams.main.headers.api-key",
    ),
    Mistake("a client key in a ConfigMap", ("config.keys[0].secret=sk-1",), "config.keys[0].secret"),
    Mistake("the operator's secret in a ConfigMap", ("config.admin.secret=sk-1",), "config.admin.secret"),
    Mistake("a reference to nothing", ("config.admin.secret=${env:NOBODY}",), "${env:NOBODY}"),
    Mistake("a reference of the other form", ("config.admin.secret=os.environ/NOBODY",), "${env:NOBODY}"),
    Mistake("a Secret that is not named", ("existingSecret=",), "existingSecret"),
]


def refusal(helm: str, mistake: Mistake) -> str:
    """What Helm says of it; empty where it takes it."""
    said = tools.template(helm, mistake.case, *(part for each in mistake.set for part in ("--set", each)))
    assert (said.status == 0) is (said.err == ""), said.err
    return said.err


@pytest.mark.parametrize("helm", tools.HELMS)
@pytest.mark.parametrize("mistake", SCHEMA, ids=lambda mistake: mistake.what)
def test_the_schema_refuses(helm: str, mistake: Mistake) -> None:
    said = refusal(helm, mistake)
    assert "schema" in said
    assert mistake.named in said


@pytest.mark.parametrize("mistake", REFUSED, ids=lambda mistake: mistake.what)
def test_the_templates_refuse_what_cannot_work_and_say_which_value_it_is(mistake: Mistake) -> None:
    said = refusal("helm4", mistake)
    assert "schema" not in said
    sentence = said.partition("deployment.yaml:")[2].partition(": ")[2]
    assert sentence.startswith((f"{mistake.named}:", "config: ", "autoscaling: "))
    assert mistake.named in sentence


def test_no_secret_is_repeated_in_a_refusal() -> None:
    assert "sk-1" not in refusal("helm4", Mistake("", ("config.upstreams.main.api_key=sk-1",), ""))


@pytest.mark.parametrize(
    "allowed",
    [
        ("config.admin.secret=${env:NOBODY}", "extraEnvFrom[0].secretRef.name=elsewhere"),
        ("config.admin.secret=${env:NOBODY}", "extraEnv[0].name=NOBODY", "extraEnv[0].value=x"),
        ("config.admin.secret=${file:/run/secrets/admin}",),
        ("config.base_prompt=$${env:NOBODY} is a text",),
        ("config.server=null", "config.models=null"),
        ("config.keys=null", "storedKeys=true"),
        ("replicas=1",),
        ("image.repository=localhost:5000/llm/weir-gate",),
        ("persistence.existingClaim=old",),
    ],
)
def test_what_can_work_is_not_refused(allowed: tuple[str, ...]) -> None:
    assert refusal("helm4", Mistake("", allowed, "")) == ""


def test_the_example_of_the_readme_installs(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", (tools.CHART / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    file = tmp_path / "values.yaml"
    file.write_text(example)
    said = tools.run("helm4", "template", tools.RELEASE, tools.CHART, "--values", file)
    assert (said.status, said.err) == (0, "")
    assert "kind: Job" in said.out


# -- every value is described and known ------------------------------------------------------------------------------


def leaves(values: Any, path: str = "") -> Iterator[str]:
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from leaves(value, f"{path}.{key}" if path else key)
    else:
        yield path


def documented() -> list[str]:
    table = (tools.CHART / "README.md").read_text()
    return re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)


def test_the_readme_has_a_line_for_every_value_or_for_what_holds_it() -> None:
    known = documented()
    written = list(leaves(yaml.safe_load((tools.CHART / "values.yaml").read_text())))
    assert len(written) > 80
    assert [path for path in written if not any(f"{path}.".startswith(f"{each}.") for each in known)] == []


def test_every_value_that_a_template_reads_stands_in_values() -> None:
    values = yaml.safe_load((tools.CHART / "values.yaml").read_text())
    read = {
        path
        for file in (tools.CHART / "templates").rglob("*")
        if file.is_file()
        for path in re.findall(r"\.Values\.([A-Za-z.]+[A-Za-z])", file.read_text())
    }

    def there(path: str) -> bool:
        at: Any = values
        for part in path.split("."):
            if not isinstance(at, dict) or part not in at:
                return False
            at = at[part]
        return True

    optional = {"config.store"}  # a section of weirgate.yaml of which values.yaml states nothing
    assert {path for path in read if not there(path)} - optional == set()


def test_the_schema_knows_every_value_and_lets_nothing_else_in() -> None:
    schema = json.loads((tools.CHART / "values.schema.json").read_text())
    values = yaml.safe_load((tools.CHART / "values.yaml").read_text())
    assert set(schema["properties"]) == {*values, "global"}
    open_ended = [
        name
        for name, each in schema["properties"].items()
        if each.get("type") == "object" and "properties" in each and each.get("additionalProperties") is not False
    ]
    assert (open_ended, schema["additionalProperties"]) == ([], False)
