"""Query strings: read strictly, since a parameter that is misspelt and ignored looks like one that was obeyed."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qs

from proxy.core.account import NAME
from proxy.core.errors import Malformed

_PLAIN: Final = re.compile(r"[a-z_]{1,32}")
"""A name that may be repeated in an error: a parameter misspelt, and nothing that could be content."""
_PARTS: Final = 10


def asked_once(query: bytes, known: tuple[str, ...], *, others: bool = False) -> dict[str, str]:
    """The parameters of `query`, each of `known` at most once; `others` are left aside, or refused.

    Raises Malformed.
    """
    try:
        asked = parse_qs(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_PARTS)
    except ValueError:
        param = known[0] if len(known) == 1 else None
        raise Malformed("The query is not UTF-8, or has too many parts.", code="out_of_range", param=param) from None
    for name, values in asked.items():
        if name not in known:
            if others:
                continue
            raise unknown_parameter(name, f"Only {', '.join(known)} can be asked for.")
        if len(values) > 1:
            raise Malformed(f"{name} can be asked for once.", code="out_of_range", param=name)
    return {name: values[0] for name, values in asked.items() if name in known}


def asked_user(query: bytes, *, others: bool = False) -> str | None:
    """The end user that `?user=` names, as a request would. Raises Malformed."""
    user = asked_once(query, ("user",), others=others).get("user") if query else None
    if user is not None and (not 0 < len(user) <= NAME or "\0" in user):
        raise Malformed(f"user is one text of 1 to {NAME} characters.", code="out_of_range", param="user")
    return user


def unknown_parameter(name: str, message: str) -> Malformed:
    return Malformed(message, code="unknown_parameter", param=name if _PLAIN.fullmatch(name) else None)
