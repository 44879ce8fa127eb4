"""The user's earlier requests inside notes: which stay whole, which as head and tail, and how many are only counted.

None is silently gone: what is not quoted is counted. Words of the user are never reworded here.
"""

from __future__ import annotations

from typing import Final

import msgspec

from proxy.core.measure import estimate
from proxy.core.notes import Pin
from proxy.core.render import clipped

_SHORTS: Final = (420, 280, 180)
"""Characters of a request that is cut to head and tail: the longest at which all of them fit, else the least."""
_MARK: Final = 5
"""Estimated tokens of the mark in front of a pin."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the user, of those that open turn `turn`."""

    turn: int
    text: str


def whole_price(requests: tuple[Request, ...]) -> int:
    """Estimated tokens that all of them take word for word."""
    return sum(estimate(request.text) + _MARK for request in requests)


def pinned(requests: tuple[Request, ...], budget: int) -> tuple[tuple[Pin, ...], int, int]:
    """Earlier requests within `budget` estimated tokens: the newest and the first whole, then all as head and tail,
    then the rest whole again while they fit, newest first. Returns them in order, how many fell out, and what the
    pins cost."""
    newest = range(len(requests) - 1, -1, -1)
    price = [estimate(request.text) + _MARK for request in requests]
    chosen: dict[int, Pin] = {}
    left = budget
    for place in (*newest[:1], *newest[-1:]):
        if place not in chosen and price[place] <= min(left, budget // 2):
            chosen[place] = Pin(turn=requests[place].turn, text=requests[place].text)
            left -= price[place]
    rest = [place for place in newest if place not in chosen]
    length, shorts = _shortened(requests, rest, left)
    for place in rest:
        request, short = requests[place], shorts[place]
        cost = estimate(short) + _MARK
        if cost <= left:
            chosen[place] = Pin(turn=request.turn, text=short, cut=short != request.text)
            left -= cost
    for place in newest:
        pin = chosen.get(place)
        if pin is not None and pin.cut:
            chosen[place], more = _grown(requests[place], pin, price[place], left, length)
            left -= more
    return tuple(chosen[place] for place in sorted(chosen)), len(requests) - len(chosen), budget - left


def _shortened(requests: tuple[Request, ...], places: list[int], left: int) -> tuple[int, dict[int, str]]:
    """How long a cut request may be, and each of `places` at most that long."""
    length, shorts = 0, dict[int, str]()
    for length in _SHORTS:
        shorts = {place: _short(requests[place].text, length) for place in places}
        if sum(estimate(short) + _MARK for short in shorts.values()) <= left:
            break
    return length, shorts


def _short(text: str, length: int) -> str:
    """Head and tail of `text`, or all of it where the mark of the cut costs more than the cut saves."""
    short = clipped(text, length)
    return short if len(short) < len(text) else text


def _grown(request: Request, pin: Pin, whole: int, left: int, length: int) -> tuple[Pin, int]:
    """`pin` whole, or as long as `left` more tokens let it be; and the tokens that takes."""
    spent = estimate(pin.text) + _MARK
    if whole - spent <= left:
        return Pin(turn=pin.turn, text=request.text), max(0, whole - spent)
    text = clipped(request.text, length + left * len(request.text) // whole)
    more = estimate(text) + _MARK - spent
    return (Pin(turn=pin.turn, text=text, cut=True), more) if 0 < more <= left else (pin, 0)
