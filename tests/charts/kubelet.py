"""What a kubelet does for a pod of the chart, as far as the gateway sees it: files and variables.

The values of Secrets are made up: `secret-of-` and the variable's name, or what the test says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.charts import tools


def container(case: str, kind: str, *arguments: str) -> Any:
    """The only container of the Deployment, or of the Job."""
    (found,) = tools.one(case, kind, *arguments)["spec"]["template"]["spec"]["containers"]
    return found


def environment(of: Mapping[str, Any], secrets: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a container; `$(NAME)` is an earlier one."""
    told: dict[str, str] = {}
    for each in of["env"]:
        name = each["name"]
        value = each["value"] if "value" in each else (secrets or {}).get(name, f"secret-of-{name}")
        told[name] = re.sub(r"\$\((\w+)\)", lambda found: told[found[1]], value)
    return told


def files(case: str, *arguments: str) -> dict[str, str]:
    """What the configuration volume of the gateway's pod holds, by path."""
    maps = {
        each["metadata"]["name"]: each["data"]
        for each in tools.objects(case, *arguments)
        if each["kind"] == "ConfigMap"
    }
    volumes = tools.one(case, "Deployment", *arguments)["spec"]["template"]["spec"]["volumes"]
    (volume,) = [each for each in volumes if each["name"] == "configuration"]
    return {
        item["path"]: maps[source["configMap"]["name"]][item["key"]]
        for source in volume["projected"]["sources"]
        for item in source["configMap"]["items"]
    }


def lay(files: Mapping[str, str], folder: Path) -> None:
    """Files in `folder` as the kubelet puts a projected volume there, or replaces one: everything changes at once.

    The files lie in a folder of their own, `..data` leads to it, and what stands at the top leads through that.
    """
    version = folder / f"..v{len(list(folder.glob('..v*')))}"
    for name, text in files.items():
        file = version / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    new = folder / "..data_tmp"
    new.symlink_to(version.name)
    new.rename(folder / "..data")
    for top in {Path(name).parts[0] for name in files}:
        if not (folder / top).is_symlink():
            (folder / top).symlink_to(Path("..data") / top)
