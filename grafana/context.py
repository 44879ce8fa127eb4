"""The second board: what becomes of conversations that outgrow their window, and whether it pays."""

from __future__ import annotations

from typing import Final

from grafana.panels import Board, Panel, Query, Row, growth, quantile, quantiles, rate, share

_MODEL: Final = "$models"


def _mean(moment: str) -> str:
    which = f'moment="{moment}"'
    sizes, made = (rate(f"weirgate_compaction_tokens_{part}", _MODEL, which) for part in ("sum", "count"))
    return f"{sizes} / {made}"


_WINDOW: Final = Row(
    "The window",
    (
        Panel(
            title="Window fill",
            about="How full prompts were when they went out, as a share of the window: how many in each band.",
            queries=(Query(rate("weirgate_window_fill_ratio_bucket", _MODEL, by="le"), "{{le}}"),),
            kind="heat",
            unit="percentunit",
        ),
        Panel(
            title="Window fill by model",
            about="95 of 100 prompts of a model were no fuller. Over the policy's compact_at: compaction does not "
            "help.",
            queries=(Query(quantile(0.95, "weirgate_window_fill_ratio", _MODEL, by="model"), "{{model}}"),),
            unit="percentunit",
        ),
        Panel(
            title="Overflows by model",
            about="Calls a second whose prompt the provider refused as too long. recovered: sent again, smaller, and "
            "the client saw nothing of it; many of them: the window in the policy is too large. "
            "reached_client: nothing helped.",
            queries=(Query(rate("weirgate_overflows_total", _MODEL, by="model, outcome"), "{{model}} {{outcome}}"),),
            kind="stack",
            unit="reqps",
        ),
    ),
)

_COMPACTION: Final = Row(
    "Compaction",
    (
        Panel(
            title="Compactions",
            about="A second, by what set them off and who wrote the notes. none: no notes could be made.",
            queries=(
                Query(
                    rate("weirgate_compactions_total", _MODEL, by="trigger, writer, outcome"),
                    "{{trigger}}, {{writer}}, {{outcome}}",
                ),
            ),
            kind="stack",
            unit="reqps",
        ),
        Panel(
            title="Prompt size at a compaction",
            about="Tokens of the mean prompt before and after. Near together: what must stay is too large for the "
            "window.",
            queries=(Query(_mean("before"), "before"), Query(_mean("after"), "after")),
            width=4,
        ),
        Panel(
            title="Calls for summaries",
            about="A second, by outcome: accepted, or why not.",
            queries=(Query(rate("weirgate_summaries_total", by="outcome"), "{{outcome}}"),),
            kind="stack",
            unit="reqps",
            width=4,
        ),
        Panel(
            title="Seconds for a summary",
            about="How long summary models take; a client waits behind each.",
            queries=quantiles("weirgate_summariser_seconds", _MODEL),
            unit="s",
            width=4,
        ),
        Panel(
            title="Strikes and pauses",
            about="Compactions without an accepted narrative, and branches on which compaction began to do less, by "
            "why.",
            queries=(
                Query(growth("weirgate_compaction_strikes_total", _MODEL), "strikes"),
                Query(growth("weirgate_compaction_pauses_total", by="why"), "{{why}}"),
            ),
            kind="bars",
            width=4,
        ),
    ),
)

_CACHE: Final = Row(
    "The provider's cache",
    (
        Panel(
            title="Cache hits",
            about="Share of prompt tokens that the provider read from its cache, by model.",
            queries=(
                Query(
                    share(
                        rate("weirgate_tokens_total", _MODEL, 'kind="cached"', by="model"),
                        rate("weirgate_tokens_total", _MODEL, 'kind="input"', by="model"),
                    ),
                    "{{model}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            title="Why the cache missed",
            about="Prompt tokens a second that were read anew. first: a new conversation. grown: said since the last "
            "call. compacted: behind other notes. changed: other system messages, tools or memory; ask what "
            "changes them. lost: sent before and not in the cache; it has expired, or the provider has none.",
            queries=(Query(rate("weirgate_uncached_tokens_total", _MODEL, by="why"), "{{why}}"),),
            kind="stack",
            width=16,
        ),
    ),
)

_BENEFIT: Final = Row(
    "Does it pay",
    (
        Panel(
            title="Net benefit by model",
            about="Dollars saved less dollars spent by compaction, in the time that is looked at. Saved is what the "
            "tokens that were not sent would have cost at the least; docs/observability.md says what it leaves "
            "out.",
            queries=(
                Query(
                    f"{growth('weirgate_saved_dollars_total', _MODEL, by='model')} - "
                    f"{growth('weirgate_spent_dollars_total', _MODEL, by='model')}",
                    "{{model}}",
                ),
            ),
            kind="bars",
            unit="currencyUSD",
            floor=False,
            width=6,
        ),
        Panel(
            title="Saved and spent an hour",
            about="Spent: calls for summaries, and prompts behind new notes that the provider's cache did not know.",
            queries=(
                Query(f"3600 * {rate('weirgate_saved_dollars_total', _MODEL)}", "saved"),
                Query(f"3600 * {rate('weirgate_spent_dollars_total', _MODEL, by='on')}", "spent on {{on}}"),
            ),
            unit="currencyUSD",
            width=6,
        ),
        Panel(
            title="Tokens kept away",
            about="A second, by what kept them away from the provider.",
            queries=(Query(rate("weirgate_unread_tokens_total", _MODEL, by="by"), "{{by}}"),),
            kind="stack",
            width=4,
        ),
        Panel(
            title="Repaired",
            about="Messages a second that clients sent in a form that providers refuse, and that were put right.",
            queries=(Query(rate("weirgate_repaired_messages_total"), "messages"),),
            width=4,
        ),
        Panel(
            title="Read again",
            about="Cut results that models asked for, a second. Many: the cuts are too short. missing: deleted, or "
            "made up.",
            queries=(Query(rate("weirgate_references_read_total", by="outcome"), "{{outcome}}"),),
            unit="reqps",
            width=4,
        ),
    ),
)

BOARD: Final = Board(
    uid="weirgate-context",
    title="Weirgate: context",
    about="What becomes of conversations that outgrow their window, and whether it pays.",
    rows=(_WINDOW, _COMPACTION, _CACHE, _BENEFIT),
)
