"""The third board: which provider is slow, which one fails, and how."""

from __future__ import annotations

from typing import Final

from grafana.panels import Board, Panel, Query, Row, of, quantile, rate, share

_UP: Final = "$upstreams"
_BOTH: Final = ("$models", "$upstreams")

_CALLS: Final = Row(
    "Calls",
    (
        Panel(
            title="Upstream calls",
            about="A second. One request of a client may need several.",
            queries=(Query(rate("weirgate_upstream_calls_total", _UP, by="upstream"), "{{upstream}}"),),
            kind="stack",
            unit="reqps",
        ),
        Panel(
            title="What for",
            about="chat is the first attempt; retry the second one, recovery one after an overflow, compaction a "
            "summary, tool_round one after tools of ours.",
            queries=(Query(rate("weirgate_upstream_calls_total", _UP, by="purpose"), "{{purpose}}"),),
            kind="stack",
            unit="reqps",
        ),
        Panel(
            title="How they ended",
            about="cancelled: the client left; partial: the stream broke after its first words.",
            queries=(Query(rate("weirgate_upstream_calls_total", _UP, by="status"), "{{status}}"),),
            kind="stack",
            unit="reqps",
        ),
    ),
)

_FAILURES: Final = Row(
    "Failures",
    (
        Panel(
            title="Failing calls",
            about="Share of an upstream's calls that failed; overflows are the prompt's fault and not counted.",
            queries=(
                Query(
                    share(
                        rate("weirgate_upstream_errors_total", _UP, 'class!~"overflow|rejected"', by="upstream"),
                        rate("weirgate_upstream_calls_total", _UP, by="upstream"),
                    ),
                    "{{upstream}}",
                ),
            ),
            unit="percentunit",
            width=6,
        ),
        Panel(
            title="Breaker",
            about="Of each upstream: 0 it is asked, 1 one call tries it, 2 it is left alone for a while.",
            queries=(Query(f"max by (upstream) ({of('weirgate_upstream_breaker_state', _UP)})", "{{upstream}}"),),
            width=4,
        ),
        Panel(
            title="Errors by class",
            about="unreachable, timeout, rate_limited, overloaded, failed (5xx), invalid (no sound answer), "
            "key_refused, no_credit, rejected (4xx), overflow; ours: a bug.",
            queries=(
                Query(rate("weirgate_upstream_errors_total", _UP, by="upstream, class"), "{{upstream}} {{class}}"),
            ),
            kind="stack",
            unit="reqps",
            width=8,
        ),
        Panel(
            title="Repeated, and not repeated",
            about="Calls made once more; and those that the retry budget forbade, because the upstream fails too "
            "often.",
            queries=(
                Query(
                    rate("weirgate_upstream_calls_total", _UP, 'purpose="retry"', by="upstream"),
                    "{{upstream}} repeated",
                ),
                Query(rate("weirgate_retries_refused_total", _UP, by="upstream"), "{{upstream}} budget spent"),
            ),
            unit="reqps",
            width=6,
        ),
    ),
)

_SPEED: Final = Row(
    "Speed",
    (
        Panel(
            title="First token, half of the streams",
            about="By upstream: the median.",
            queries=(Query(quantile(0.5, "weirgate_first_token_seconds", *_BOTH, by="upstream"), "{{upstream}}"),),
            unit="s",
            width=6,
        ),
        Panel(
            title="First token, 95 of 100 streams",
            about="By upstream and model.",
            queries=(
                Query(
                    quantile(0.95, "weirgate_first_token_seconds", *_BOTH, by="upstream, model"),
                    "{{upstream}} {{model}}",
                ),
            ),
            unit="s",
            width=6,
        ),
        Panel(
            title="Between two tokens",
            about="95 of 100 streams are quicker, by upstream.",
            queries=(Query(quantile(0.95, "weirgate_inter_token_seconds", *_BOTH, by="upstream"), "{{upstream}}"),),
            unit="s",
            width=6,
        ),
        Panel(
            title="Whole calls",
            about="95 of 100 calls end sooner, by upstream.",
            queries=(Query(quantile(0.95, "weirgate_upstream_seconds", *_BOTH, by="upstream"), "{{upstream}}"),),
            unit="s",
            width=6,
        ),
    ),
)

BOARD: Final = Board(
    uid="weirgate-upstreams",
    title="Weirgate: upstreams",
    about="Which provider is slow, which one fails, and how.",
    rows=(_CALLS, _FAILURES, _SPEED),
    by_upstream=True,
)
