"""The fourth board: whether the database keeps up, and what happens where it does not."""

from __future__ import annotations

from typing import Final

from grafana.panels import Board, Panel, Query, Row, growth, of, quantile, quantiles, rate

_FINISH: Final = 'stage="finish"'

_WAITING: Final = Row(
    "Waiting",
    (
        Panel(
            title="Recall",
            about="What a call waits to learn what is known of its conversation. Recent ones come from memory.",
            queries=quantiles("weirgate_store_seconds", 'operation="recall"'),
            unit="s",
        ),
        Panel(
            title="Finish",
            about="From the upstream's last byte until what the call taught and its usage rows are durable.",
            queries=quantiles("weirgate_added_seconds", _FINISH),
            unit="s",
        ),
        Panel(
            title="Queue",
            about="Answered calls that wait for their rows, by replica. It grows: the disk or the database is too "
            "slow.",
            queries=(Query(of("weirgate_store_waiting"), "{{instance}}"),),
        ),
    ),
)

_WORK: Final = Row(
    "Work",
    (
        Panel(
            title="Usage rows",
            about="A second: one for each upstream call.",
            queries=(Query(rate("weirgate_upstream_calls_total"), "rows"),),
            width=6,
        ),
        Panel(
            title="Compactions stored",
            about="A second. unstored: the database refused one, and it was used for its call alone.",
            queries=(
                Query(rate("weirgate_compactions_total", 'outcome=~"stored|unstored"', by="outcome"), "{{outcome}}"),
            ),
            width=6,
        ),
        Panel(
            title="Slowest replica",
            about="The wait for the store, 95 of 100 calls, by replica.",
            queries=(Query(quantile(0.95, "weirgate_added_seconds", _FINISH, by="instance"), "{{instance}}"),),
            unit="s",
            width=12,
        ),
    ),
)

_FAILURES: Final = Row(
    "Failures",
    (
        Panel(
            title="Failed by the store",
            about="Times a second that the database could not be read or written for a call.",
            queries=(Query(rate("weirgate_store_failures_total", by="instance"), "{{instance}}"),),
        ),
        Panel(
            title="Served without it",
            about="Calls in the time that is looked at that were served though the store was down (store.required: "
            "false): nothing of them is kept.",
            queries=(Query(growth("weirgate_unremembered_calls_total"), "calls"),),
            kind="number",
            good=0,
            bad=1,
        ),
        Panel(
            title="Readiness",
            about="Readiness checks a second, by answer. 503: the store cannot be written, or the replica is leaving.",
            queries=(Query(rate("weirgate_requests_total", 'route="/readyz"', by="status"), "{{status}}"),),
            unit="reqps",
        ),
    ),
)

BOARD: Final = Board(
    uid="weirgate-store",
    title="Weirgate: store",
    about="Whether the database keeps up, and what happens where it does not.",
    rows=(_WAITING, _WORK, _FAILURES),
    by_model=False,
)
