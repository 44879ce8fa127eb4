"""The first board: is it serving, how quickly, and what does it cost."""

from __future__ import annotations

from typing import Final

from grafana.panels import Board, Panel, Query, Row, growth, of, quantile, quantiles, rate, share

_CHAT: Final = 'route="/v1/chat/completions"'
_ALL: Final = rate("weirgate_requests_total", _CHAT)
_FAILED: Final = rate("weirgate_requests_total", _CHAT, 'status=~"5.."')

_TRAFFIC: Final = Row(
    "Traffic",
    (
        Panel(
            title="Requests",
            about="Client requests a second, by route.",
            queries=(Query(rate("weirgate_requests_total", by="route"), "{{route}}"),),
            kind="stack",
            unit="reqps",
        ),
        Panel(
            title="In flight",
            about="Requests being served, by replica. Streams count until their last byte.",
            queries=(Query(of("weirgate_in_flight"), "{{instance}}"),),
        ),
        Panel(
            title="Versions",
            about="Which version runs on how many replicas; two of them during a rollout only.",
            queries=(Query(f"count by (version) ({of('weirgate_build_info')})", "{{version}}"),),
            kind="number",
            width=4,
        ),
        Panel(
            title="Configuration in force",
            about="1 while every replica serves what stands on disk; 0: a reload was refused, and the log says why.",
            queries=(Query(f"min({of('weirgate_config_last_reload_successful')})", "reload"),),
            kind="number",
            width=4,
            good=1,
            bad=0,
        ),
    ),
)

_ERRORS: Final = Row(
    "Errors",
    (
        Panel(
            title="Availability",
            about="Share of chat requests that were not answered with a status of 500 or more.",
            queries=(Query(f"1 - ({share(_FAILED, _ALL)})", "available"),),
            kind="number",
            unit="percentunit",
            width=4,
            good=0.999,
            bad=0.99,
        ),
        Panel(
            title="Answers by status",
            about="Chat requests a second by status. 499: the client left. 4xx: look at the client; 5xx: at Upstreams.",
            queries=(Query(rate("weirgate_requests_total", _CHAT, by="status"), "{{status}}"),),
            kind="stack",
            unit="reqps",
            width=8,
        ),
        Panel(
            title="Overflows",
            about="Calls a second that overflowed: cured before the client saw anything, or passed on to it.",
            queries=(Query(rate("weirgate_overflows_total", "$models", by="outcome"), "{{outcome}}"),),
            kind="stack",
            unit="reqps",
            width=8,
        ),
        Panel(
            title="Refused unread",
            about="Calls in the time that is looked at that were refused at once because a replica had too much to do. "
            "Many: add replicas.",
            queries=(Query(growth("weirgate_shed_requests_total"), "calls"),),
            kind="number",
            width=4,
            good=0,
            bad=100,
        ),
    ),
)

_LATENCY: Final = Row(
    "Latency",
    (
        Panel(
            title="Chat requests",
            about="From head to last byte. Most of it is the model's.",
            queries=quantiles("weirgate_request_seconds", _CHAT),
            unit="s",
        ),
        Panel(
            title="First token",
            about="From the upstream call to the first data frame of a stream.",
            queries=quantiles("weirgate_first_token_seconds", "$models"),
            unit="s",
        ),
        Panel(
            title="Added by the gateway",
            about="95 of 100 calls spend less in each stage of ours. compact holds the summary model's time; finish "
            "is the wait for the store.",
            queries=(Query(quantile(0.95, "weirgate_added_seconds", by="stage"), "{{stage}}"),),
            unit="s",
        ),
    ),
)

_TOKENS: Final = Row(
    "Tokens and cost",
    (
        Panel(
            title="Tokens",
            about="Tokens a second. cached and cache_write are part of input, reasoning of output.",
            queries=(Query(rate("weirgate_tokens_total", "$models", by="kind"), "{{kind}}"),),
        ),
        Panel(
            title="Cost an hour",
            about="What providers charge, by the model of the configuration. Who of its callers spends it: `weirgate "
            "usage --by key`.",
            queries=(Query(f"3600 * {rate('weirgate_cost_dollars_total', '$models', by='model')}", "{{model}}"),),
            kind="stack",
            unit="currencyUSD",
        ),
        Panel(
            title="Spent by model",
            about="In the time that is looked at.",
            queries=(Query(growth("weirgate_cost_dollars_total", "$models", by="model"), "{{model}}"),),
            kind="bars",
            unit="currencyUSD",
            width=4,
        ),
        Panel(
            title="Calls without a price",
            about="Upstream calls of models that no price is known for: their cost is in no sum. Name a price in the "
            "policy, or a model that the catalogue knows.",
            queries=(Query(growth("weirgate_unpriced_calls_total", "$models", by="model"), "{{model}}"),),
            kind="bars",
            width=4,
        ),
    ),
)

BOARD: Final = Board(
    uid="weirgate-overview",
    title="Weirgate: overview",
    about="Is it serving, how quickly, and what does it cost.",
    rows=(_TRAFFIC, _ERRORS, _LATENCY, _TOKENS),
)
