"""The law of the house, as tests: shape, words, purity, types, locks, and that what stands beside the code is current.

Each test gathers every breach and shows them all. A rule is changed here or not at all: no file has a private
exemption, except those that stand in a table of this file with their reason.
"""

from __future__ import annotations

import ast
import fcntl
import importlib
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from proxy import __version__
from tests import house
from tests.data import ROOT

LONGEST_FILE = 500
LONGEST_FUNCTION = 60

BANNED_FILES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "managers", "misc"}
BANNED_CLASSES = re.compile(r"(Manager|Helper|Helpers|Util|Utils)$")

# The parts of the standard library that compute and do nothing else: what core and dialects may import.
PURE = frozenset(
    """__future__ abc base64 binascii bisect codecs collections contextlib copy dataclasses decimal difflib enum fnmatch
    fractions functools hashlib heapq hmac html itertools json math operator re statistics string struct textwrap types
    typing unicodedata""".split()
)
PURE_LIBRARIES = frozenset({"msgspec"})

# Source files of the pure rooms that need no test file of their own.
WORDS_ONLY = {
    "proxy/core/conversation.py": "values without rules; groups and chain test what is said with them",
    "proxy/core/events.py": "values without rules; the dialects and relay test what is said with them",
    "proxy/core/explanation.py": "values without rules; explaining makes and tests them",
    "proxy/core/notes.py": "values without rules; compaction and ledger make and test them",
    "proxy/core/stack.py": "values without rules; layers and the dialect's dressing test what is made of them",
}


def breaches(found: Iterator[str]) -> list[str]:
    return sorted(found)


# -- shape -----------------------------------------------------------------------------------------------------------


def test_no_file_is_longer_than_the_house_allows() -> None:
    lengths = {house.short(path): len(house.text(path).splitlines()) for path in house.code()}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_no_function_is_longer_than_the_house_allows() -> None:
    def found() -> Iterator[str]:
        for path in house.sources():
            for node in ast.walk(house.tree(path)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    if lines > LONGEST_FUNCTION:
                        yield f"{house.short(path)}:{node.lineno} {node.name} has {lines} lines"

    assert breaches(found()) == []


def test_no_file_or_class_has_a_name_that_says_nothing() -> None:
    def found() -> Iterator[str]:
        for path in house.sources():
            name = house.short(path)
            if path.stem.removeprefix("test_") in BANNED_FILES or path.parent.name in BANNED_FILES:
                yield name
            for node in ast.walk(house.tree(path)):
                if isinstance(node, ast.ClassDef) and BANNED_CLASSES.search(node.name):
                    yield f"{name}:{node.lineno} {node.name}"

    assert breaches(found()) == []


def test_each_file_of_the_package_opens_with_its_law() -> None:
    assert [house.short(path) for path in house.sources("proxy/") if not ast.get_docstring(house.tree(path))] == []


# -- imports and purity ----------------------------------------------------------------------------------------------


def test_imports_run_one_way() -> None:
    status, said = house.run("lint-imports", "--no-cache", "--no-logo")
    assert status == 0, said


def test_the_pure_rooms_import_nothing_that_touches_the_world() -> None:
    def found() -> Iterator[str]:
        for path in house.sources("proxy/core/", "proxy/dialects/"):
            for name, line in house.imported(house.tree(path)):
                top = name.partition(".")[0]
                if top not in PURE | PURE_LIBRARIES and not name.startswith(("proxy.core", "proxy.dialects")):
                    yield f"{house.short(path)}:{line} imports {name}"

    assert breaches(found()) == []


def test_a_contract_does_not_import_its_fulfilments() -> None:
    def found() -> Iterator[str]:
        for room in ("store", "upstream"):
            path = ROOT / "proxy" / room / "__init__.py"
            for name, line in house.imported(house.tree(path)):
                if name.startswith(f"proxy.{room}"):
                    yield f"{house.short(path)}:{line} imports {name}"

    assert breaches(found()) == []


def test_nothing_is_made_into_code_and_the_pure_rooms_open_nothing() -> None:
    def found() -> Iterator[str]:
        for path in house.sources("proxy/"):
            pure = house.short(path).startswith(("proxy/core/", "proxy/dialects/"))
            banned = {"eval", "exec", "compile", "__import__"} | ({"open", "print", "input"} if pure else set())
            for node in ast.walk(house.tree(path)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in banned:
                    yield f"{house.short(path)}:{node.lineno} calls {node.func.id}"

    assert breaches(found()) == []


# A module-level list, dict or set passes only where it is declared as a type that cannot be written to, because
# then mypy refuses the write.
_MUTABLE_MAKERS = {"list", "dict", "set", "bytearray", "defaultdict", "deque", "OrderedDict", "Counter"}
_MUTABLE_MAKERS |= {"WeakValueDictionary", "WeakKeyDictionary", "WeakSet", "count", "cycle", "local"}
_READ_ONLY = re.compile(r"^(Final\[)?(collections\.abc\.|typing\.)?(Mapping|Sequence|Collection|Set|Iterable)\[")
_MUTABLE_NODES = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)


def _is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        function = value.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        return name in _MUTABLE_MAKERS
    return isinstance(value, _MUTABLE_NODES)


def _is_read_only(annotation: ast.expr) -> bool:
    return _READ_ONLY.match(ast.unparse(annotation)) is not None


def test_no_module_keeps_state_that_can_change() -> None:
    def found() -> Iterator[str]:
        for path in house.sources("proxy/"):
            module = house.tree(path)
            for node in module.body:
                if isinstance(node, ast.Assign) and _is_mutable(node.value):
                    names = {ast.unparse(target) for target in node.targets} - {"__all__"}
                    yield from (f"{house.short(path)}:{node.lineno} {name}" for name in names)
                if isinstance(node, ast.AnnAssign) and _is_mutable(node.value) and not _is_read_only(node.annotation):
                    yield f"{house.short(path)}:{node.lineno} {ast.unparse(node.target)}"
            for inner in ast.walk(module):
                if isinstance(inner, ast.Global):
                    yield f"{house.short(path)}:{inner.lineno} global {', '.join(inner.names)}"

    assert breaches(found()) == []


# -- nothing is silenced ---------------------------------------------------------------------------------------------


def test_nothing_is_silenced_without_a_code() -> None:
    bare = re.compile(r"#\s*(type:\s*ignore(?!\[)|noqa(?!:)|mypy:\s*ignore-errors|pragma:\s*no cover\s*$)")

    def found() -> Iterator[str]:
        for path in house.sources():
            for number, line in enumerate(house.text(path).splitlines(), 1):
                if bare.search(line) and path != Path(__file__):
                    yield f"{house.short(path)}:{number} {line.strip()}"

    assert breaches(found()) == []


def _catches_all(node: ast.ExceptHandler) -> bool:
    return node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")


def _does_nothing(body: list[ast.stmt]) -> bool:
    return all(isinstance(line, ast.Pass) or ast.unparse(line) == "..." for line in body)


def _suppresses_all(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("suppress"):
        return False
    return bool({"Exception", "BaseException"} & {ast.unparse(argument) for argument in node.args})


def test_no_failure_is_swallowed_whole() -> None:
    def found() -> Iterator[str]:
        for path in house.sources():
            for node in ast.walk(house.tree(path)):
                if isinstance(node, ast.ExceptHandler) and _catches_all(node) and _does_nothing(node.body):
                    yield f"{house.short(path)}:{node.lineno} swallows {ast.unparse(node.type or ast.Name('all'))}"
                if _suppresses_all(node):
                    yield f"{house.short(path)}:{getattr(node, 'lineno', 0)} {ast.unparse(node)}"

    assert breaches(found()) == []


# The three tools stand here too, because CI runs `make test` alone.


@pytest.mark.tool
def test_the_code_is_formatted() -> None:
    status, said = house.run("ruff", "format", "--check", "--no-cache", ".")
    assert status == 0, said


@pytest.mark.tool
def test_the_linter_finds_nothing() -> None:
    status, said = house.run("ruff", "check", "--no-cache", "--output-format", "concise", ".")
    assert status == 0, said


@pytest.mark.tool
@pytest.mark.timeout(400)
def test_the_types_hold() -> None:
    cache = ROOT / ".mypy_cache"
    cache.mkdir(exist_ok=True)
    with (cache / "house.lock").open("w") as lock:  # mypy's cache takes one writer; two test runs may meet here
        fcntl.flock(lock, fcntl.LOCK_EX)
        status, said = house.run("mypy", "--cache-dir", str(cache / "house"), timeout=300)
    assert status == 0, said


# -- nothing of one machine ------------------------------------------------------------------------------------------


def test_no_file_names_a_package_index_or_a_path_of_one_machine() -> None:
    # In pieces, so that this file does not name what it forbids.
    hosts = ("py" + "pi.org", "python" + "hosted.org", "registry.npm" + "js", "deb." + "debian.org")
    pattern = re.compile("|".join(map(re.escape, hosts)) + r"|(?<![\w.])/(?:wor" + r"k|far" + r"m)/[a-z.]")

    def found() -> Iterator[str]:
        for path in house.files():
            for number, line in enumerate(house.text(path).splitlines(), 1):
                if match := pattern.search(line):
                    yield f"{house.short(path)}:{number} {match.group()}"

    assert breaches(found()) == []


# -- locks -----------------------------------------------------------------------------------------------------------

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*])?==(?P<version>[^\s;\\]+)", re.MULTILINE)


def _locks() -> list[Path]:
    return [path for path in house.files() if house.short(path).startswith("requirements/") and path.suffix == ".txt"]


def _pins(lock: Path) -> dict[str, str]:
    return {canonicalize_name(pin["name"]): pin["version"] for pin in _PIN.finditer(lock.read_text())}


def _declared() -> tuple[list[Requirement], list[Requirement]]:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime = [Requirement(line) for line in declared["project"]["dependencies"]]
    return runtime, [Requirement(line) for line in declared["dependency-groups"]["dev"]]


def test_every_locked_package_has_its_hash_and_no_lock_names_an_index() -> None:
    def found() -> Iterator[str]:
        for lock in _locks():
            # One entry: a line that begins at the margin, and the indented lines that continue it.
            for entry in re.findall(r"^[^\s#].*(?:\n[ \t].*)*", lock.read_text(), re.MULTILINE):
                if not _PIN.match(entry) or "--hash=sha256:" not in entry:
                    yield f"{lock.name}: {entry.splitlines()[0]}"

    assert len(_locks()) >= 2
    assert breaches(found()) == []


def test_the_bad_releases_of_litellm_are_in_no_lock_and_in_no_range() -> None:
    bad = ("1.82.7", "1.82.8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (declared,) = [Requirement(line) for line in extras["litellm"]]
    assert not any(declared.specifier.contains(version) for version in bad)
    assert "proxy" not in declared.extras
    assert [lock.name for lock in _locks() if _pins(lock).get("litellm") in bad] == []
    assert "litellm" not in _pins(ROOT / "requirements/runtime.txt")


def test_the_locks_are_in_step_with_what_is_declared() -> None:
    runtime, dev = _declared()
    small, large = _pins(ROOT / "requirements/runtime.txt"), _pins(ROOT / "requirements/dev.txt")

    def fits(wanted: Requirement, pins: dict[str, str]) -> bool:
        return wanted.specifier.contains(pins.get(canonicalize_name(wanted.name), "0"), prereleases=True)

    assert [str(wanted) for wanted in runtime if not fits(wanted, small)] == []
    assert [str(wanted) for wanted in [*runtime, *dev] if not fits(wanted, large)] == []
    assert {name: version for name, version in small.items() if large.get(name) != version} == {}


# -- what stands beside the code -------------------------------------------------------------------------------------


def test_each_file_of_the_pure_rooms_has_a_test_file_of_its_name() -> None:
    pure = [path for path in house.sources("proxy/core/", "proxy/dialects/") if path.stem != "__init__"]
    missing = {
        short
        for short in map(house.short, pure)
        if not (ROOT / "tests" / short.removeprefix("proxy/")).with_name(f"test_{short.rpartition('/')[2]}").exists()
    }
    assert missing - WORDS_ONLY.keys() == set()
    assert WORDS_ONLY.keys() - {house.short(path) for path in pure} == set(), "an exemption for a file that is gone"


@pytest.mark.parametrize("module", ["proxy.settings", "proxy.policies"])
def test_the_committed_schema_is_the_one_that_the_code_gives(module: str) -> None:
    made = importlib.import_module(module).schema()
    made = made if isinstance(made, dict) else json.loads(made)
    committed = {path.name: json.loads(path.read_text()) for path in sorted((ROOT / "schemas").glob("*.json"))}
    assert [name for name, schema in committed.items() if schema == made], (
        f"none of {[*committed]} is {module}.schema()"
    )


def _keys(node: yaml.Node | None, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Every key of a YAML mapping with its line, nested keys as `tail.messages`."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield prefix + key.value, key.start_mark.line
            yield from _keys(value, f"{prefix}{key.value}.")


def test_the_default_policy_explains_every_key() -> None:
    path = ROOT / "policies" / "default.yaml"
    written = path.read_text(encoding="utf-8")
    lines = written.splitlines()
    keys = dict(_keys(yaml.compose(written, yaml.SafeLoader)))
    # Explained: a comment on its line or right above it; the keys of a mapping written in one line share that.
    silent = [key for key, line in keys.items() if "#" not in lines[line] and "#" not in lines[max(line - 1, 0)]]
    assert silent == []
    needed = set("match mode window compact_at target reserve_max_share tail pinned ledger summary cache".split())
    assert needed - keys.keys() == set()


def test_the_version_stands_in_one_place_and_the_changelog_knows_it() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in declared["dynamic"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in changelog or f"## [{__version__}]" in changelog
