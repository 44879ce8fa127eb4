"""What memory costs: every recorded conversation played against three tariffs, with memory, without, and with windows.

    python benchmarks/memory_cost.py                    # all conversations, all tariffs
    python benchmarks/memory_cost.py --write            # and write benchmarks/memory.md
    python benchmarks/memory_cost.py pi specstory       # conversations whose id begins so

A client sends its whole history with every recorded assistant message, as the recorded one did; each prompt is made by
the gateway's own order of a call, folds of what slid out included. What stands at the beginning of a prompt as it stood
in the one before counts as read from the provider's cache, which never expires here; all the rest counts as written.
Costs are in prompt tokens at the price of one that is neither (output costs the same in every column). No window is
known, so nothing but memory makes a prompt smaller.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file: the repository is not on the path

from benchmarks.dry import Store
from proxy.core import groups
from proxy.core.agent import Agent, MemoryLimits
from proxy.core.chain import begin
from proxy.core.conversation import Message
from proxy.core.exchange import exchange
from proxy.core.past import Past
from proxy.core.policy import ModelCard, Policy, Tariff
from proxy.core.recollection import Recollection
from proxy.core.steps import Call, Caller, Limits, Prompt, Ratio, Reply, Send, Snapshot
from proxy.dialects.chat.messages import read_message
from proxy.layering import Layering
from tests.data import Conversation, conversations

PRICE: Final = 1_000
TARIFFS: Final = (
    ("no cache price", Tariff(input=PRICE, output=0)),
    ("read 0.1, write 1.25", Tariff(input=PRICE, output=0, cached=100, cache_write=1_250)),
    ("read 0.25, write 1.0", Tariff(input=PRICE, output=0, cached=250)),
)
ARMS: Final = (
    ("off", None),
    ("on", MemoryLimits()),
    ("step 1", MemoryLimits(step=1)),
    ("step 5", MemoryLimits(step=5)),
    ("step 10", MemoryLimits(step=10)),
    ("step 20", MemoryLimits(step=20)),
    ("window", MemoryLimits(step=1, leaving="drop")),
)
"""`on` is the default; `window` the literal sliding window, from which turns fall without a trace."""
SCOPE: Final = b"memory".ljust(32, b".")
TABLE: Final = Path(__file__).with_name("memory.md")


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a replay: what the history was, what was sent of it, and what was stored by then."""

    at: int
    shown: tuple[Message, ...]
    prompt: Prompt
    results: frozenset[str]


class _Model:
    """The model of a replay: what it was sent last, what was stored by then, and what it will say."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.answer: Message | None = None
        self.prompt: Prompt | None = None
        self.results: frozenset[str] = frozenset()

    def send(self, step: Send) -> Reply:
        self.prompt, self.results = step.prompt, frozenset(self._store.results)
        return Reply(message=self.answer, finish="stop", usage=None)


def messages_of(row: Conversation) -> tuple[Message, ...]:
    return tuple(read_message(json.dumps(each).encode(), place) for place, each in enumerate(row.messages))


def played(
    messages: Sequence[Message],
    limits: MemoryLimits | None,
    tariff: Tariff | None = None,
    *,
    window: int | None = None,
    alternate: bool = False,
    tools: tuple[str, ...] = ("read_tool_result",),
    store: Store | None = None,
    steps: Sequence[int] | None = None,
) -> Iterator[Played]:
    """Play the calls that the recorded assistant messages answered, or those at `steps`. `alternate`: the model takes
    no two messages of one role in a row."""
    store = store or Store()
    told = _Model(store)
    recollection = Recollection()
    layering = Layering(time.time)
    agent = Agent(name="support", model="m", instructions="Help.", tools=tools, memory=limits)
    card = ModelCard(name="m", tariff=tariff)
    known: Past | None = None
    answers = [at for at, item in enumerate(messages) if at and item.role == "assistant"] if steps is None else steps
    for at in answers:
        shown = tuple(messages[:at])
        call = Call(
            caller=Caller(tenant="acme", key="k"),
            model="support",
            messages=shown,
            fields={},
            body=b"",
            known=known,
            label="l",
        )
        policy = Policy(window=window, summary_asked=False, alternate=alternate)
        snap = Snapshot(
            policy=policy,
            card=card,
            limits=Limits(total=window),
            ratio=Ratio(),
            exact_ratio=Ratio(),
            upstream="u",
            agent="support",
            scope=SCOPE,
            start=begin(SCOPE),
            fresh="conv_x",
            scan=store.scan,
            stack=layering.stack(call, base="", agent=agent, shelf={}, policy=policy, card=card),
            recollection=recollection,
            holds=store.results.__contains__,
        )
        told.answer = messages[at] if at < len(messages) else None
        outcome = store.served(exchange(call, snap), told.send)
        # What was repaired is no beginning of what will be sent.
        known = outcome.past if outcome.past is not None and outcome.past.messages == shown else None
        assert told.prompt is not None
        yield Played(at=at, shown=groups.repair(shown).messages, prompt=told.prompt, results=told.results)


# -- what it costs ----------------------------------------------------------------------------------------------------


def cost(calls: Iterator[Played], tariff: Tariff) -> float:
    """Prompt tokens of all `calls`, at the price of one that is neither read from the cache nor written to it."""
    read = (tariff.input if tariff.cached is None else tariff.cached) / tariff.input
    write = (tariff.input if tariff.cache_write is None else tariff.cache_write) / tariff.input
    total = 0.0
    before: tuple[Message, ...] = ()
    for each in calls:
        told = each.prompt.messages
        same = 0
        for one, other in zip(before, told, strict=False):
            if one is not other and one != other:
                break
            same += 1
        total += read * sum(item.tokens for item in told[:same]) + write * sum(item.tokens for item in told[same:])
        before = told
    return total


def measured(
    rows: Sequence[Conversation], say: Callable[[str], None] = print
) -> dict[str, dict[str, dict[str, float]]]:
    """Cost by tariff, conversation and arm."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        messages = messages_of(row)
        if sum(item.role == "assistant" for item in messages[1:]) < 2:
            continue
        known: dict[str, tuple[Played, ...]] = {}
        for tariff_name, tariff in TARIFFS:
            costs = found.setdefault(tariff_name, {}).setdefault(row.id, {})
            for name, limits in ARMS:
                # What has no step of its own depends on the tariff; all others are played once.
                key = name if limits is None or limits.step is not None else f"{name} {tariff_name}"
                if key not in known:
                    known[key] = tuple(played(messages, limits, tariff))
                costs[name] = cost(iter(known[key]), tariff)
        say(f"{row.id}: {len(groups.turns(messages))} turns")
    return found


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """The report as Markdown."""
    lines = ["| tariff | " + " | ".join(name for name, _ in ARMS) + " | dearer with memory on | dearest |"]
    lines.append("|---" * (len(ARMS) + 3) + "|")
    for tariff, rows in found.items():
        sums = {name: sum(costs[name] for costs in rows.values()) for name, _ in ARMS}
        worse = {id: costs["on"] / costs["off"] for id, costs in rows.items() if costs["on"] > costs["off"] * 1.000001}
        dearest = max(worse, key=worse.__getitem__, default="")
        told = f"{dearest} {worse[dearest]:.3f}x" if dearest else "none"
        cells = " | ".join(f"{sums[name] / 1e6:.2f}" for name, _ in ARMS)
        lines.append(f"| {tariff} | {cells} | {len(worse)} of {len(rows)} | {told} |")
    return "\n".join(lines)


def report(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """The whole page."""
    parts = [_PAGE.format(count=len(next(iter(found.values())))), table(found)]
    for tariff, rows in found.items():
        parts.append(f"\n## {tariff}: the dearest twelve, in thousands\n")
        parts.append(
            "| conversation | " + " | ".join(name for name, _ in ARMS) + " |\n" + "|---" * (len(ARMS) + 1) + "|"
        )
        for id, costs in sorted(rows.items(), key=lambda each: -each[1]["off"])[:12]:
            parts.append(f"| {id} | " + " | ".join(f"{costs[name] / 1e3:.0f}" for name, _ in ARMS) + " |")
    return "\n".join(parts) + "\n"


_PAGE: Final = """# What memory costs

Made by `python benchmarks/memory_cost.py --write`; its first lines say how. {count} recorded conversations of at least
two calls; cost in millions of prompt tokens at the price of one that is neither read from a cache nor written to it.

- *off*: everything is sent word for word. *on*: the default (`memory.step` not stated): with every turn where there is
  no price for cached tokens, else when it pays.
- *step n*: the boundaries move every n turns; 1 is the literal sliding window. *window*: the same, but turns that slide
  out are dropped without notes.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ids", nargs="*", help="conversations whose id begins so")
    parser.add_argument("--write", action="store_true", help="write benchmarks/memory.md")
    asked = parser.parse_args()
    rows = [row for row in conversations() if not asked.ids or row.id.startswith(tuple(asked.ids))]
    found = measured(rows, lambda line: print(line, file=sys.stderr))
    print(table(found))
    if asked.write:
        TABLE.write_text(report(found), encoding="utf-8")


if __name__ == "__main__":
    main()
