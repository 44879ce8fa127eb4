"""The programs that judge the chart: where they are, whether they are there, and what they say of it.

`scripts/helm.sh` makes them (`make charts`). What is absent is skipped aloud, except in CI, where it is a failure.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.clients.programs import in_ci
from tests.data import ROOT

CHART = ROOT / "charts" / "weirgate"
BIN = ROOT / ".venv-charts" / "bin"
HELMS = ("helm3", "helm4")
RELEASE, NAMESPACE = "rel", "llm"
CASES = tuple(sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml")))
"""The committed sets of values, by name."""

Object = Mapping[str, Any]
"""One Kubernetes object."""


class Said(NamedTuple):
    status: int
    out: str
    err: str


def need(*programs: str) -> None:
    """Skip the test where a program is absent; fail it in CI."""
    lacking = [name for name in programs if not (BIN / name).exists()]
    if not lacking:
        return
    reason = f"{', '.join(lacking)}: absent from .venv-charts: run `make charts`"
    if in_ci():
        pytest.fail(f"{reason}; in CI that is an error")
    pytest.skip(reason)


def run(program: str, *arguments: str | Path) -> Said:
    need(program)
    done = subprocess.run(
        [BIN / program, *arguments],
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": os.devnull},  # whatever cluster this machine knows, no test asks it
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def values_of(case: str) -> Path:
    return CHART / "ci" / f"{case}-values.yaml"


def template(helm: str, case: str, *arguments: str) -> Said:
    """What a helm makes of the chart with one set of values and whatever is set beside it."""
    return run(helm, "template", RELEASE, CHART, "--namespace", NAMESPACE, "--values", values_of(case), *arguments)


@cache
def rendered(helm: str, case: str, *arguments: str) -> str:
    said = template(helm, case, *arguments)
    assert said.status == 0, said.err
    return said.out


def objects(case: str, *arguments: str, helm: str = "helm4") -> list[Object]:
    """Every object of the chart with these values."""
    return [each for each in yaml.safe_load_all(rendered(helm, case, *arguments)) if each]


def one(case: str, kind: str, *arguments: str, name: str = "") -> Object:
    """The only object of a kind, or the one with that name."""
    (found,) = [
        each
        for each in objects(case, *arguments)
        if each["kind"] == kind and (not name or each["metadata"]["name"] == name)
    ]
    return found


def pods(case: str) -> Iterator[tuple[str, Object]]:
    """The specification of every pod that the chart makes, by the name of what makes it."""
    for each in objects(case):
        if each["kind"] in ("Deployment", "Job"):
            yield each["kind"], each["spec"]["template"]["spec"]
        elif each["kind"] == "Pod":
            yield "Pod", each["spec"]
