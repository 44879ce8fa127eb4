"""The Dockerfile without a container engine: read, linted, and its work done by hand.

The steps of its first stage run in a folder that holds exactly what the Dockerfile copies. What comes out serves as the
user of the last stage: without rights, on a file system that cannot be written but for the data folder and /tmp.
Not run: pulling the base image, the layers, and the steps of the last stage.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from proxy import __version__
from tests.charts import tools
from tests.charts.serving import serving
from tests.data import ROOT

DOCKERFILE = ROOT / "Dockerfile"
PREFIX = "/opt/weirgate"


class Step(NamedTuple):
    stage: str
    word: str
    rest: str


def steps() -> list[Step]:
    """The instructions of the Dockerfile in order, each with the name of its stage; the last stage has none."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found, stage = [], "before"
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stage = rest.partition(" AS ")[2]
        found.append(Step(stage, word, rest.strip()))
    return found


def of(stage: str, word: str) -> list[str]:
    return [step.rest for step in steps() if (step.stage, step.word) == (stage, word)]


def copied(stage: str) -> list[str]:
    """What a stage takes from the checkout."""
    lines = [shlex.split(rest) for rest in of(stage, "COPY") if "--from=" not in rest]
    return [name for line in lines for name in line[:-1]]


# -- read ------------------------------------------------------------------------------------------------------------


def test_the_linter_of_dockerfiles_finds_nothing() -> None:
    said = tools.run("hadolint", DOCKERFILE)
    assert said.status == 0, said.out


def test_the_context_holds_what_is_copied_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().split("\n")
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert "*" in lines
    assert let_in == {*copied("build"), *copied("demo-model")}
    assert [name for name in let_in if not (ROOT / name).exists()] == []


def test_every_stage_starts_from_the_one_pinned_image() -> None:
    (default,) = [step.rest for step in steps() if step.stage == "before" and step.word == "ARG"]
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.\d+[\w.-]*-slim-\w+(@sha256:[0-9a-f]{64})?", default)
    assert {step.rest.partition(" AS ")[0] for step in steps() if step.word == "FROM"} == {"${PYTHON_IMAGE}"}


def test_the_last_stage_is_a_user_without_a_name_and_brings_nothing_that_builds() -> None:
    assert of("", "USER") == ["10001:10001"]
    assert [rest for rest in of("", "COPY")] == [f"--from=build {PREFIX} {PREFIX}"]
    assert not any(re.search(r"\b(install -|pip install|apt-get|gcc|curl)\b", rest) for rest in of("", "RUN"))
    assert any("pip uninstall" in rest for rest in of("", "RUN"))
    assert of("", "STOPSIGNAL") == ["SIGTERM"]
    assert of("", "HEALTHCHECK") == ["NONE"]


def test_the_image_says_which_version_it_is() -> None:
    assert f"VERSION={__version__}" in of("", "ARG")
    (labels,) = of("", "LABEL")
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels


def test_the_chart_runs_as_the_images_user_where_the_image_has_its_folders() -> None:
    deployment = tools.one("sqlite", "Deployment")["spec"]["template"]["spec"]
    security = deployment["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == of("", "USER")[0]
    (container,) = deployment["containers"]
    assert [container["workingDir"]] == of("", "WORKDIR")
    assert str(container["args"]).replace("'", '"') == of("", "CMD")[0]


# -- done by hand ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="weirgate-image-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def built(place: Path) -> Path:
    """The environment that the first stage makes."""
    context, prefix = place / "src", place / "opt"
    for name in copied("build"):
        source, target = ROOT / name, context / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    commands = [re.sub(r"--mount=\S+ ", "", rest) for rest in of("build", "RUN")]
    assert commands == [f"scripts/image.sh {part} {PREFIX}" for part in ("libraries", "gateway")]
    for command in commands:
        done = subprocess.run(
            [*shlex.split(command)[:-1], prefix],
            cwd=context,
            env={**os.environ, "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    return prefix


def text_of(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


@pytest.mark.timeout(240)
def test_the_first_stage_makes_a_gateway_of_the_locked_libraries(built: Path) -> None:
    assert text_of(built / "bin" / "weirgate", "--version").strip() == f"weirgate {__version__}"
    listed = text_of(sys.executable, "-m", "pip", "--python", str(built / "bin" / "python"), "freeze")
    there = {
        re.sub(r"[-_.]+", "-", name).lower(): version for name, version in re.findall(r"^(\S+)==(\S+)$", listed, re.M)
    }
    locked = dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", (ROOT / "requirements" / "runtime.txt").read_text(), re.M))
    assert there.keys() - locked.keys() <= {"weirgate"}
    assert {name: version for name, version in there.items() if locked.get(name, version) != version} == {}


@pytest.mark.timeout(240)
def test_nothing_that_builds_comes_with_it(built: Path) -> None:
    packages = {path.name.partition("-")[0].lower() for path in built.glob("lib/python3.*/site-packages/*.dist-info")}
    assert not packages & {"pip", "setuptools", "wheel", "hatchling", "uv", "pytest"}
    assert not [path for path in (built / "bin").iterdir() if path.name.startswith("pip")]
    assert list(built.glob("lib/python3.*/site-packages/proxy/__pycache__/*.pyc")), "every start would compile it anew"
    assert list(built.glob("lib/python3.*/site-packages/proxy/shipped/policies/default.yaml"))


ALONE = """
mount --bind "$DATA" "$DATA"
mount -o remount,bind,ro /
mount -t tmpfs tmpfs /tmp
! touch "$PLACE/x" 2>/dev/null
exec setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""
"""What a container engine does for the pod, as far as mount namespaces and setpriv can: run as root."""


def isolating() -> list[str]:
    """The program that starts another one so; the test is skipped, aloud, where the machine does not let us."""
    alone = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid() or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a read-only root needs root and mount namespaces, which are not to be had here")
    return [*alone, "bash", "-euc", ALONE, "alone"]


@pytest.mark.timeout(240)
def test_it_serves_without_rights_on_a_root_that_cannot_be_written(built: Path, place: Path) -> None:
    alone = isolating()
    data = place / "data"
    data.mkdir(exist_ok=True)
    os.chown(data, 10001, 10001)
    config = place / "weirgate.yaml"
    config.write_text(
        f'upstreams: {{main: {{base_url: "http://127.0.0.1:9/v1"}}}}\nstore: {{url: "sqlite:///{data}/w.db"}}\n'
    )
    told = {"DATA": str(data), "PLACE": str(place), "HOME": str(data), "PYTHONDONTWRITEBYTECODE": "1"}
    command = built / "bin" / "weirgate"
    with serving(["serve", "--config", str(config)], place, told, before=alone, command=command) as gateway:
        assert gateway.ask("/readyz").status == 200
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{gateway.child.pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"10001"}
        assert (int(status["CapEff"], 16), int(status["CapBnd"], 16), status["NoNewPrivs"]) == (0, 0, "1")
        assert {path.name for path in data.iterdir()} >= {"w.db"}
        gateway.child.terminate()
        assert gateway.child.wait(20) == 0
