"""The SQL of the SQLite fulfilment as text, ready for the driver.

What belongs here: what there is to say, by what it does, and reading it from `sqlite.json`. What never: SQL of our own
(`composing` makes it, from the tables of `schema`), or running any.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from proxy.core.usage import UsageRow

FILE = Path(__file__).parent / "sqlite.json"
"""Written by `scripts/statements.py`; nobody edits it."""

SIZES = (4, 32, 256)
"""How many digests one statement can ask for. A list is filled up with its last digest, so three texts serve all."""

LISTED = 256
"""A scope with at most so many rows of a kind is listed whole: cheaper than asking for thousands of digests."""

PURGED = 2_000
"""Rows deleted in one transaction: others' work goes in between."""

USAGE_COLUMNS: tuple[str, ...] = (*UsageRow.__struct_fields__, "day")

CONTENT = ("compaction", "hidden", "result")
"""The tables that hold what people and models said."""

RETAINED = (*CONTENT, "trace", "reply")
"""The tables whose rows live as long as their conversation is used."""


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """SQL by what it does, in whichever database; the order of parameters stands at each maker in `composing`.

    `touch`, `add` and `purge` go by table, `owned` (conversations that we keep) by the names in
    `composing_owned`, `standing` (limits of keys) by those in `composing_standing`.
    """

    add: Mapping[str, str]
    touch: Mapping[str, str]
    purge: Mapping[str, str]
    result: str
    traces: str
    secret: str
    claim: str
    release: str
    calibrations: str
    calibrate: str
    keys: str
    revoke_key: str
    account: str
    set_account: str
    drop_account: str
    tenant_after: str
    owned: Mapping[str, str]
    standing: Mapping[str, str]


class Statements(Shared, frozen=True, kw_only=True):
    """SQLite's. A tuple holds one text per entry of SIZES."""

    conversation_of_label: str
    label_of_conversation: str
    move_anchor: str
    replies: tuple[str, ...]
    compactions: tuple[str, ...]
    compactions_in_scope: str
    hidden_at: tuple[str, ...]
    hidden_in_scope: str
    hidden: str
    open_row: str
    close_row: str
    any_account: str


class Reports(msgspec.Struct, frozen=True, kw_only=True):
    """Reading usage rows, of all tenants or of one: single rows, or sums. The order of parameters stands at each maker
    in `composing_reports`."""

    rows_of_all: str
    rows_of_tenant: str
    sums_of_all: str
    sums_of_tenant: str


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """`sqlite.json`. `schema` is what makes an empty database one that stands at migration `head`."""

    head: str
    schema: tuple[str, ...]
    statements: Statements
    reports: Reports


def compiled() -> Compiled:
    """Everything, as it was compiled. Half a millisecond, once per store."""
    return msgspec.json.decode(FILE.read_bytes(), type=Compiled)
