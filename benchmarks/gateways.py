"""Gateways for comparing two of them: today's source or a commit's, plain or with agents, fresh for each round.

Each source stands in a temporary folder of its own outside the checkout, today's as a copy: what an editor saves in the
middle of a run changes nothing. All use this Python and its packages. How the gateway of the other cases is started
stands in contenders.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks.agents import agents_config, agents_models, knows_memory, write_prompts
from benchmarks.build import Unavailable
from benchmarks.contenders import CONFIG, Site
from benchmarks.launch import Launch, Place, Running, launched

ROOT = Path(__file__).resolve().parent.parent
TODAY, COMMIT, AGENTS = "today", "commit", "agents"
GIT_SECONDS = 60.0


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A tree of source that holds `proxy` and `policies`. `memory`: its agents have the key `memory`."""

    tree: Path
    memory: bool = False

    def environment(self) -> Mapping[str, str]:
        """Ours, but `proxy` comes from this tree."""
        return {**os.environ, "PYTHONPATH": str(self.tree)}


def _git(*arguments: str) -> str:
    """What git says. Raises Unavailable."""
    try:
        done = subprocess.run(("git", "-C", str(ROOT), *arguments), capture_output=True, text=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Unavailable(f"git: {problem}") from None
    if done.returncode != 0:
        raise Unavailable((done.stderr.strip() or "git failed").splitlines()[-1])
    return done.stdout.strip()


def resolved(commit: str) -> tuple[str, str]:
    """Its whole id, and a line for a person: short id and subject. Raises Unavailable."""
    try:
        whole = _git("rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}")
    except Unavailable as problem:
        raise Unavailable(f"there is no commit {commit!r} here ({problem})") from None
    return whole, _git("log", "-1", "--format=%h %s", whole)


def worktree(commit: str, folder: Path, stack: ExitStack) -> Path:
    """The commit's files in `folder`/commit; closing `stack` removes them and git's record of them. Raises Unavailable.

    A run that was killed outright leaves a record: the next one's `prune` drops it, once its folder is gone."""
    tree = folder / "commit"
    stack.callback(_forget, tree)
    _git("worktree", "prune")
    _git("worktree", "add", "--detach", "--quiet", str(tree), commit)
    return tree


def _forget(tree: Path) -> None:
    for words in (("unlock", str(tree)), ("prune",)):  # one that was stopped while it was made is still locked
        shutil.rmtree(tree, ignore_errors=True)
        subprocess.run(("git", "-C", str(ROOT), "worktree", *words), capture_output=True, timeout=GIT_SECONDS)


def copied(folder: Path) -> Path:
    """Today's source, as it lies in the checkout, in `folder`/today."""
    tree = folder / "today"
    for name in ("proxy", "policies"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tree


def source(tree: Path) -> Source:
    """Raises Unavailable where another tree's code would run, or none."""
    found = Source(tree=tree)
    line = (sys.executable, "-c", "import proxy; print(proxy.__file__)")
    beside = tree.parent  # in the tree itself, Python would find it without being told
    done = subprocess.run(line, cwd=beside, env=found.environment(), capture_output=True, text=True, timeout=60)
    if not done.stdout.startswith(str(tree)):
        said = done.stderr.strip() or f"it runs {done.stdout.strip()}"
        raise Unavailable(f"its source does not run here: {said.splitlines()[-1]}")
    return msgspec.structs.replace(found, memory=knows_memory(found.environment(), beside))


def gateway(kind: str, where: Source, place: Place) -> Launch:
    """How it is started: the defaults of the other cases, and for AGENTS prompts, skills and agents besides."""
    shutil.copytree(where.tree / "policies", place.folder / "policies")
    config = CONFIG.format(port=place.port, upstream=place.upstream, folder=place.folder)
    if kind == AGENTS:
        write_prompts(place.folder)
        config = config.replace("models:\n", agents_models()) + agents_config(where.memory)
    (place.folder / "weirgate.yaml").write_text(config)
    line = (sys.executable, "-m", "proxy", "serve", "--config", str(place.folder / "weirgate.yaml"))
    return Launch(line=line, environment=where.environment(), patience=60.0)


class Gateways(msgspec.Struct, frozen=True, kw_only=True):
    """What can be started: kind -> its source, or why there is none."""

    site: Site
    sources: Mapping[str, Source | str]

    def launch(self, kind: str, serial: int) -> tuple[Launch, Place]:
        """In a new folder. Raises Unavailable."""
        where = self.sources[kind]
        if isinstance(where, str):
            raise Unavailable(where)
        place = self.site.place(f"{kind}-{serial}")
        return gateway(kind, where, place), place

    def start(self, kind: str, serial: int, stack: ExitStack) -> Running:
        """A fresh one; closing `stack` stops it. Raises Unavailable or OSError."""
        launch, place = self.launch(kind, serial)
        return launched(kind, launch, place, stack, self.site.cores)


def gateways(site: Site, commit: str, stack: ExitStack) -> Gateways:
    """Today's source copied and, where a commit is named, that one's checked out; closing `stack` removes both."""
    sources: dict[str, Source | str] = {}
    try:
        sources[TODAY] = sources[AGENTS] = source(copied(site.folder))
    except (Unavailable, OSError) as problem:
        sources[TODAY] = sources[AGENTS] = str(problem)
    try:
        sources[COMMIT] = source(worktree(commit, site.folder, stack)) if commit else "AGAINST=<commit>"
    except (Unavailable, OSError) as problem:
        sources[COMMIT] = str(problem)
    return Gateways(site=site, sources=sources)
