"""Writes what in charts/weirgate is made from something else, so that Helm can package the folder as it is.

python scripts/chart.py           write it
python scripts/chart.py --check   say what is not current, exit 1 if anything is not

files/             copies of policies/, grafana/dashboards/ and grafana/rules/: a chart reads nothing outside its folder
values.schema.json its `definitions`, from schemas/: a typing error in `config` is found by Helm
README.md          the table of values, from the comments in values.yaml
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "weirgate"
COPIED: Mapping[str, tuple[str, str]] = {
    "policies": ("policies", "*.yaml"),
    "dashboards": ("grafana/dashboards", "*.json"),
    "rules": ("grafana/rules", "*.yaml"),
}
"""Folder under files/: where its files come from."""

OWN = {"policies": (), "server": ("host", "port"), "store": ("url",)}
"""Keys of weirgate.yaml that the chart sets itself: whole, or these members."""

BEGIN, END = "<!-- values: made by scripts/chart.py -->", "<!-- end of values -->"


def main(arguments: list[str]) -> int:
    made = {**copies(), CHART / "values.schema.json": schema(), CHART / "README.md": readme()}
    left = {path for name in COPIED for path in (CHART / "files" / name).glob("*")} - made.keys()
    stale = [path for path, text in made.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    stale += sorted(left)
    for path in stale:
        short = path.relative_to(ROOT)
        if "--check" in arguments:
            print(f"{short} is not current: run python scripts/chart.py")
        elif path in left:
            path.unlink()
            print(f"removed {short}")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path], encoding="utf-8")
            print(f"wrote {short}")
    return 1 if stale and "--check" in arguments else 0


def copies() -> dict[Path, str]:
    """The files that the chart holds a copy of, with their text."""
    return {
        CHART / "files" / name / source.name: source.read_text(encoding="utf-8")
        for name, (folder, pattern) in COPIED.items()
        for source in sorted((ROOT / folder).glob(pattern))
    }


# -- values.schema.json ----------------------------------------------------------------------------------------------


def schema() -> str:
    """The schema of the values as it stands, with its definitions made anew."""
    written = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    settings, policy = (
        json.loads((ROOT / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8"))
        for name in ("weirgate", "policy")
    )
    definitions = {**policy.pop("$defs"), **settings.pop("$defs"), "Policy": policy, "Configuration": settings}
    without_own_keys(settings, definitions)
    written["definitions"] = {name: plain(each) for name, each in sorted(definitions.items())}
    return json.dumps(written, indent=2, ensure_ascii=False) + "\n"


def without_own_keys(settings: dict[str, Any], definitions: Mapping[str, Any]) -> None:
    for key, members in OWN.items():
        if not members:
            del settings["properties"][key]
            continue
        definition = definitions[settings["properties"][key]["$ref"].rpartition("/")[2]]
        for member in members:
            del definition["properties"][member]


def plain(node: Any) -> Any:
    """A schema in the words of draft 7, which both Helm 3 and 4 read; without defaults, which Helm does not use."""
    if isinstance(node, list):
        return [plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    told = {}
    for key, value in node.items():
        if key == "properties":
            told[key] = {name: plain(each) for name, each in value.items()}
        elif key == "$ref":
            told[key] = value.replace("#/$defs/", "#/definitions/")
        elif key not in ("default", "title", "$schema", "format", "writeOnly"):
            told[key] = plain(value)
    return told


# -- the table of values ---------------------------------------------------------------------------------------------


def readme() -> str:
    """README.md as it stands, with its table made anew."""
    written = (CHART / "README.md").read_text(encoding="utf-8")
    before, _, rest = written.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"README.md has no place for the table: {BEGIN} ... {END}")
    table = ["| value | default | meaning |", "| --- | --- | --- |"]
    table += [f"| `{key}` | {shown(default)} | {meaning} |" for key, default, meaning in values()]
    return f"{before}{BEGIN}\n" + "\n".join(table) + f"\n{END}{after}"


def values() -> Iterator[tuple[str, Any, str]]:
    """Each value with a comment right above it: its path, default and meaning."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    node = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(node, yaml.MappingNode)
    yield from commented(node, "", text.splitlines(), told=False)


def commented(node: yaml.MappingNode, prefix: str, lines: list[str], *, told: bool) -> Iterator[tuple[str, Any, str]]:
    """`told`: a comment further up speaks of all that stands here, so a value may go without its own."""
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        meaning = comment(lines, key.start_mark.line)
        block = isinstance(value, yaml.MappingNode) and not value.flow_style
        if meaning:
            yield path, constructed(value), meaning
        elif not block and not told:
            raise SystemExit(f"values.yaml:{key.start_mark.line + 1}: {path} has no comment above it")
        if block:
            yield from commented(value, f"{path}.", lines, told=told or bool(meaning))


def comment(lines: list[str], line: int) -> str:
    """The comment that stands right above a line; rulers between groups are none."""
    said: list[str] = []
    while line and (text := lines[line - 1].strip()).startswith("# ") and not text.startswith("# --"):
        said.insert(0, text.removeprefix("# "))
        line -= 1
    return " ".join(said)


def constructed(node: yaml.Node) -> Any:
    return yaml.SafeLoader("").construct_document(node)


def shown(default: Any) -> str:
    """A default as a table cell; a long one is in the file."""
    if default in ("", None):
        return "" if default == "" else "`null`"
    text = default if isinstance(default, str) else json.dumps(default, ensure_ascii=False)
    return f"`{text}`" if len(text) <= 60 else "see values.yaml"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
