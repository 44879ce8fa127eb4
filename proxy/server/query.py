"""Query strings: read strictly, since a parameter that is misspelt and ignored looks like one that was obeyed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs

import msgspec

from proxy.core.account import NAME
from proxy.core.errors import Malformed
from proxy.dialects.strict import unknown_parameter

_PARTS: Final = 10
_PAGE: Final = 20
_LARGEST: Final = 100
"""Entries of a list that are told at a time, unless more or fewer are asked for."""


def asked_once(
    query: bytes, known: tuple[str, ...], *, others: bool = False, aside: tuple[str, ...] = ()
) -> dict[str, str]:
    """The parameters of `query`, each of `known` at most once; those named in `aside`, or all `others`, are left aside,
    or refused. Raises Malformed."""
    try:
        asked = parse_qs(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_PARTS)
    except ValueError:
        param = known[0] if len(known) == 1 else None
        raise Malformed("The query is not UTF-8, or has too many parts.", code="out_of_range", param=param) from None
    for name, values in asked.items():
        if name not in known:
            if others or name in aside:
                continue
            raise unknown_parameter(name, f"Only {', '.join(known)} can be asked for.")
        if len(values) > 1:
            raise Malformed(f"{name} can be asked for once.", code="out_of_range", param=name)
    return {name: values[0] for name, values in asked.items() if name in known}


def asked_user(query: bytes, *, others: bool = False) -> str | None:
    """The end user that `?user=` names, as a request would. Raises Malformed."""
    return named_user(asked_once(query, ("user",), others=others)) if query else None


def named_user(asked: Mapping[str, str]) -> str | None:
    """The end user among what was asked for. Raises Malformed."""
    user = asked.get("user")
    if user is not None and (not 0 < len(user) <= NAME or "\0" in user):
        raise Malformed(f"user is one text of 1 to {NAME} characters.", code="out_of_range", param="user")
    return user


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a list: so many, behind the one with the id `after`, the newest first or the oldest."""

    limit: int
    after: str | None
    newest_first: bool


def asked_page(asked: Mapping[str, str]) -> Page:
    """As OpenAI's lists are asked for: `limit`, `after`, `order`. Raises Malformed."""
    limit, order = asked.get("limit", str(_PAGE)), asked.get("order", "desc")
    if not limit.isascii() or not limit.isdigit() or len(limit) > 3 or not 1 <= int(limit) <= _LARGEST:
        raise Malformed(f"limit is from 1 to {_LARGEST}.", code="out_of_range", param="limit")
    if order not in ("asc", "desc"):
        raise Malformed("order is asc or desc.", code="out_of_range", param="order")
    return Page(limit=int(limit), after=asked.get("after"), newest_first=order == "desc")
