"""The peers: other gateways that stand between a client and a provider, at exact versions, each in a place of its own.

One table says which, at what version, under what licence and how each is run. They are installed from package indexes
into the cache folder outside the work tree, by the full locks in locks/, and never into the house's environment:
LiteLLM's proxy extra is forbidden to the house as a dependency; here it is the peer itself. 1.82.7 and 1.82.8 of it
were malicious uploads and are never installed. Each runs with a home folder of its own and an environment that holds
nothing of ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from benchmarks.build import Unavailable, cache_folder
from benchmarks.launch import Launch, Place

LOCKS = Path(__file__).resolve().parent / "locks"
INSTALL_SECONDS = 900.0
PATIENCE = 120.0  # seconds until a peer's first answer: LiteLLM takes 20 on a busy machine
MALICIOUS = {"litellm": ("1.82.7", "1.82.8")}


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """`run`: with what settings, for a person to read."""

    name: str
    package: str
    version: str
    licence: str
    run: str


PEERS = (
    Peer(
        name="litellm",
        package="litellm[proxy]",
        version="1.108.7",
        licence="MIT",
        run="one worker, models listed, no keys, no database, logs at errors only",
    ),
    Peer(
        name="portkey",
        package="@portkey-ai/gateway",
        version="1.15.2",
        licence="MIT",
        run="headless, on Node; provider and host in two request headers",
    ),
    Peer(
        name="headroom",
        package="headroom-ai[proxy]",
        version="0.42.0",
        licence="Apache-2.0",
        run="--no-optimize: relays only, since its text model cannot be had from an index",
    ),
    Peer(
        name="context-guardian",
        package="context-guardian",
        version="0.12.0",
        licence="MIT",
        run="a window of 4,000,000 tokens: it counts, and never compacts",
    ),
    Peer(
        name="cliffcompaction",
        package="cliffcompaction",
        version="0.1.0",
        licence="MIT",
        run="a threshold of 10,000,000 tokens: it estimates, and never compacts",
    ),
)
NAMES = tuple(peer.name for peer in PEERS)


def peer_named(name: str) -> Peer:
    return next(peer for peer in PEERS if peer.name == name)


def is_node(peer: Peer) -> bool:
    return peer.package.startswith("@")


def lock_files(peer: Peer) -> tuple[Path, ...]:
    """What it is installed by: every package at one version."""
    if is_node(peer):
        return (LOCKS / peer.name / "package.json", LOCKS / peer.name / "package-lock.json")
    return (LOCKS / f"{peer.name}.txt",)


def home(peer: Peer) -> Path:
    """Its own folder in the cache; another lock or another Python is another folder."""
    said = b"".join(file.read_bytes() for file in lock_files(peer)) + sys.version.encode()
    return cache_folder() / "peers" / f"{peer.name}-{peer.version}-{hashlib.sha256(said).hexdigest()[:8]}"


def installed(name: str) -> bool:
    return (home(peer_named(name)) / ".installed").exists()


def _run(*command: str, cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Unavailable(f"{Path(command[0]).name} failed: {problem}") from problem
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "without a word").splitlines()
        raise Unavailable(f"{Path(command[0]).name} failed: " + "\n".join(said[-3:]))


def install(peer: Peer) -> Path:
    """Its folder, filled if it is not yet. Raises Unavailable."""
    folder = home(peer)
    if installed(peer.name):
        return folder
    if is_node(peer) and not (shutil.which("npm") and shutil.which("node")):
        raise Unavailable("needs node and npm (Debian: apt-get install nodejs npm)")
    shutil.rmtree(folder, ignore_errors=True)  # half an installation is none
    folder.mkdir(parents=True)
    if is_node(peer):
        for file in lock_files(peer):
            shutil.copy(file, folder)
        _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", cwd=folder)
    else:
        _run(sys.executable, "-m", "venv", str(folder), cwd=folder)
        pip = (str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input")
        (lock,) = lock_files(peer)
        _run(*pip, "install", "--quiet", "--only-binary", ":all:", "--no-deps", "-r", str(lock), cwd=folder)
    (folder / ".installed").touch()
    return folder


# -- how each is started ---------------------------------------------------------------------------------------------


def _litellm(root: Path, place: Place) -> Launch:
    listed = [
        {
            "model_name": model,
            "litellm_params": {
                "model": f"openai/{model}",
                "api_base": f"http://127.0.0.1:{place.upstream}/v1",
                "api_key": "sk-none",
            },
        }
        for model in place.models
    ]
    config = place.folder / "litellm.json"  # JSON is YAML
    config.write_text(json.dumps({"model_list": listed}))
    line = (str(root / "bin" / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(place.port))
    return Launch(
        line=(*line, "--telemetry", "False"),
        environment={
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it looks for a newer price list before it starts
            "LITELLM_LOG": "ERROR",
            # As the gateway here it asks nobody for a key; without this it refuses to start. Loopback only.
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        },
    )


def _portkey(root: Path, place: Place) -> Launch:
    script = root / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    return Launch(
        line=(shutil.which("node") or "node", str(script), f"--port={place.port}", "--headless"),
        environment={"NODE_ENV": "production"},
        headers=("x-portkey-provider: openai", f"x-portkey-custom-host: http://127.0.0.1:{place.upstream}/v1"),
    )


def _headroom(root: Path, place: Place) -> Launch:
    line = (str(root / "bin" / "headroom"), "proxy", "--host", "127.0.0.1", "--port", str(place.port))
    upstream = ("--openai-api-url", f"http://127.0.0.1:{place.upstream}/v1")
    return Launch(
        line=(*line, *upstream, "--no-rate-limit", "--no-cache", "--no-optimize"),
        environment={
            "HEADROOM_WORKSPACE_DIR": str(place.folder),
            "HEADROOM_TELEMETRY": "off",
            "HF_HUB_OFFLINE": "1",
        },
    )


def _context_guardian(root: Path, place: Place) -> Launch:
    return Launch(
        line=(str(root / "bin" / "context-guardian"),),
        environment={
            "GUARDIAN_DATA_DIR": str(place.folder),
            "GUARDIAN_VERSION_CHECK": "0",
            "GUARDIAN_HOST": "127.0.0.1",
            "GUARDIAN_PORT": str(place.port),
            "GUARDIAN_UPSTREAM_URL": f"http://127.0.0.1:{place.upstream}/v1",
            "GUARDIAN_NUM_CTX": "4000000",
        },
    )


def _cliffcompaction(root: Path, place: Place) -> Launch:
    line = (str(root / "bin" / "cliff"), "serve", "--host", "127.0.0.1", "--port", str(place.port))
    return Launch(
        line=(*line, "--threshold", "10000000", "--openai-upstream", f"http://127.0.0.1:{place.upstream}"),
        environment={},
    )


_LAUNCHES: Mapping[str, Callable[[Path, Place], Launch]] = MappingProxyType(
    {
        "litellm": _litellm,
        "portkey": _portkey,
        "headroom": _headroom,
        "context-guardian": _context_guardian,
        "cliffcompaction": _cliffcompaction,
    }
)


def launch(name: str, place: Place) -> Launch:
    """How it is started, installed if it was not. Raises Unavailable."""
    own = _LAUNCHES[name](install(peer_named(name)), place)
    # Its home is its own folder: it finds no settings, keys or caches of whoever runs this, and leaves nothing there.
    clean = {"PATH": os.environ.get("PATH", ""), "HOME": str(place.folder), "LANG": "C.UTF-8"}
    return msgspec.structs.replace(own, environment=clean | dict(own.environment or {}), patience=PATIENCE)
