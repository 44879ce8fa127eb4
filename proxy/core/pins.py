"""The user's earlier requests inside notes: which stay whole, which as head and tail, and how many are only counted.

None is silently gone: what is not quoted is counted. Words of the user are never reworded here.
"""

from __future__ import annotations

from typing import Final

import msgspec

from proxy.core.measure import estimate
from proxy.core.notes import Pin
from proxy.core.render import clipped

_SHORT: Final = 420
"""Characters of a request that is cut to head and tail."""
_MARK: Final = 5
"""Estimated tokens of the mark in front of a pin."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the user said to open turn `turn`, in so many `messages`."""

    turn: int
    text: str
    messages: int


def pinned(requests: tuple[Request, ...], budget: int) -> tuple[tuple[Pin, ...], int, int]:
    """Earlier requests within `budget` estimated tokens: the newest and the first whole, then all as head and tail,
    then the rest whole again while they fit, newest first. Returns them in order, how many user messages fell out, and
    what the pins cost."""
    newest = tuple(reversed(requests))
    price = {request.turn: estimate(request.text) + _MARK for request in requests}
    chosen: dict[int, Pin] = {}
    left = budget
    for request in (*newest[:1], *requests[:1]):
        if request.turn not in chosen and price[request.turn] <= min(left, budget // 2):
            chosen[request.turn] = Pin(turn=request.turn, text=request.text)
            left -= price[request.turn]
    for request in newest:
        short = clipped(request.text, _SHORT)
        cost = estimate(short) + _MARK
        if request.turn not in chosen and cost <= left:
            chosen[request.turn] = Pin(turn=request.turn, text=short, cut=short != request.text)
            left -= cost
    for request in newest:
        pin = chosen.get(request.turn)
        if pin is not None and pin.cut:
            grown, more = _grown(request, pin, price[request.turn], left)
            chosen[request.turn] = grown
            left -= more
    dropped = sum(request.messages for request in requests if request.turn not in chosen)
    return tuple(chosen[request.turn] for request in requests if request.turn in chosen), dropped, budget - left


def _grown(request: Request, pin: Pin, whole: int, left: int) -> tuple[Pin, int]:
    """`pin` whole, or as long as `left` more tokens let it be; and the tokens that takes."""
    spent = estimate(pin.text) + _MARK
    if whole - spent <= left:
        return Pin(turn=pin.turn, text=request.text), max(0, whole - spent)
    text = clipped(request.text, _SHORT + left * len(request.text) // whole)
    more = estimate(text) + _MARK - spent
    return (Pin(turn=pin.turn, text=text, cut=True), more) if 0 < more <= left else (pin, 0)
