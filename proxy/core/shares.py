"""How the size of a prompt is shared out among its layers.

Belongs here: which layer a told message, a text in the leading message or a tool definition is of, and how much of the
whole it takes. Never: the whole itself, which was projected before; and no layer of its own (`layers` makes them).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from proxy.core.conversation import Message
from proxy.core.groups import turns
from proxy.core.layers import NONE, Layers, pieces, standing
from proxy.core.layout import Layout
from proxy.core.measure import MESSAGE_OVERHEAD, estimate
from proxy.core.notes import Compaction
from proxy.core.render import covered
from proxy.core.stack import Stack
from proxy.core.steps import Prompt

Layer = Literal[
    "base",
    "conventions",
    "instructions",
    "client_system",
    "skills",
    "catalogue",
    "notes",
    "open_request",
    "earlier",
    "rounds",
    "newest",
    "client_tools",
    "own_tools",
]
"""The operator's prompt, the runtime's own words, the agent author's, the client's system messages, the selected
skills, the list of the others; notes, the request that is still open, earlier turns, the gateway's own tool rounds in
them, the newest turn; the tools."""

_NAMED: Final = 6
"""Names that are listed before the rest is counted."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One layer. `messages` are those of the conversation that it takes, `tokens` its part of the whole, `share` that
    part of the window (None: unknown); `told` says in words what it is, or how it comes to the model."""

    layer: Layer
    messages: int = 0
    tokens: int
    share: float | None = None
    told: str = ""


def parts(
    prompt: Prompt,
    layout: Layout,
    layers: Layers,
    stack: Stack | None,
    used: Compaction | None,
    *,
    tools: tuple[int, int],
    total: int,
    window: int | None,
) -> tuple[Part, ...]:
    """The layers of `prompt`, laid out by `layout`, in order; they add up to `total` tokens. `tools` are the client's:
    how many, and their estimated size."""
    found = [*_front(layout, layers, stack), *_conversation(prompt, layout, layers, used)]
    count, weight = tools
    if weight:
        found.append(Part(layer="client_tools", tokens=weight, told=many(count, "tool")))
    if layers.offer is not None:
        own = ", ".join(sorted(layers.offer.names))
        found.append(Part(layer="own_tools", tokens=layers.offer.tokens - weight, told=own))
    return tuple(
        msgspec.structs.replace(part, tokens=tokens, share=round(tokens / window, 4) if window else None)
        for part, tokens in zip(found, shared(total, [part.tokens for part in found]), strict=True)
    )


def shared(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in whole parts as large as `weights`: by largest remainder, so that they add up."""
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    found = [total * weight // whole for weight in weights]
    rest = sorted(range(len(weights)), key=lambda place: (-(total * weights[place] % whole), place))
    for place in rest[: total - sum(found)]:
        found[place] += 1
    return found


def _front(layout: Layout, layers: Layers, stack: Stack | None) -> list[Part]:
    """What stands before the conversation."""
    system = layout.told[: layout.front]
    clients = [Part(layer="client_system", messages=len(system), tokens=_weight(system))] if system else []
    if stack is None or layers.leading is None:
        return clients
    found: list[Part] = []
    listed = layers.catalogue if layers.offer is not None else ()
    chosen = [skill.slug for skill in layers.selected]
    named = {"skills": chosen, "catalogue": [each.slug for each in listed if each.slug not in chosen]}
    selected = layers.selected if stack.agent is not None and stack.agent.place == "system" else ()
    for layer, text in pieces(stack, stack.standing or standing(stack), selected, listed):
        if layer == "client_system":
            found += clients
        elif text:
            found.append(Part(layer=layer, tokens=estimate(text), told=_several(named.get(layer, ()))))
    return found


def _conversation(prompt: Prompt, layout: Layout, layers: Layers, used: Compaction | None) -> list[Part]:
    """Notes, the open request, earlier turns and the newest, with what layers put between and beside them."""
    newest = next((turn.first for turn in reversed(turns(layout.messages))), len(layout.messages))
    earlier = [place for place in layout.tail if layout.origins[place] < newest]
    latest = [place for place in layout.tail if layout.origins[place] >= newest]
    rounds = _rounds(prompt.messages, layers)
    beside = [found.beside for index in layout.origins.values() if (found := layers.expansions.get(index))]
    named = _several([skill.slug for skill in layers.selected])
    fixed = (
        _part("notes", layout, layers, layout.notes, "" if used is None else covered(used.notes)),
        _part("open_request", layout, layers, layout.open),
        Part(layer="rounds", messages=len(rounds), tokens=_weight(rounds), told="calls of our own tools, and results"),
        Part(layer="skills", tokens=sum(map(estimate, beside)), told=f"{named} beside the request"),
        _part("newest", layout, layers, latest),
    )
    notes, request, ours, skills, last = fixed
    several = (notes, request, _earlier(prompt, layout, layers, earlier, fixed), ours, skills, last)
    return [part for part in several if part.tokens]


def _earlier(prompt: Prompt, layout: Layout, layers: Layers, places: Sequence[int], others: Iterable[Part]) -> Part:
    """What is left of the prompt: memory may tell less of these turns than there is."""
    shown = _part("earlier", layout, NONE, places)
    system = layout.told[: layout.front]
    if layers.leading is not None:
        system = (layers.leading, *system[layers.replaced :])
    count = len(prompt.messages) - len(system) - sum(part.messages for part in others)
    tokens = _weight(prompt.messages) - _weight(system) - sum(part.tokens for part in others)
    # Neighbours that were merged weigh less by a message's frame each.
    if not places or tokens + MESSAGE_OVERHEAD * prompt.report.repaired >= shown.tokens:
        return msgspec.structs.replace(shown, tokens=max(0, tokens) if places else 0)
    return Part(layer="earlier", messages=max(0, count), tokens=max(0, tokens), told="as memory tells them")


def _rounds(messages: Iterable[Message], layers: Layers) -> list[Message]:
    """The messages in which a model calls nothing but tools of ours, and their results."""
    names = layers.offer.names if layers.offer is not None else frozenset[str]()
    found: list[Message] = []
    ids: set[str] = set()
    for item in messages if names else ():
        if item.calls and all(call.name in names for call in item.calls):
            ids.update(call.id for call in item.calls)
            found.append(item)
        elif item.results and item.results[0].call_id in ids:
            found.append(item)
    return found


def _part(layer: Layer, layout: Layout, layers: Layers, places: Sequence[int], told: str = "word for word") -> Part:
    messages = [_told(layout, layers, place) for place in places]
    cut = len(set(places) & set(layout.clipped))
    if cut:
        told += f", {many(cut, 'message')} cut to head and tail"
    return Part(layer=layer, messages=len(messages), tokens=_weight(messages), told=told)


def _told(layout: Layout, layers: Layers, place: int) -> Message:
    """What stands at `place`: of a reply of ours, what the model really said."""
    index = layout.origins.get(place)
    found = None if index is None else layers.expansions.get(index)
    return layout.told[place] if found is None or found.instead is None else found.instead


def _weight(messages: Iterable[Message]) -> int:
    return sum(item.tokens for item in messages)


def _several(names: Sequence[str]) -> str:
    listed = ", ".join(names[:_NAMED])
    return f"{listed} and {len(names) - _NAMED} more" if len(names) > _NAMED else listed


def many(count: int, name: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"1 {name}" if count == 1 else f"{count:,} {name}s"
