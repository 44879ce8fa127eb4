"""What is counted: closed sets of labels, and text that Prometheus can read."""

from __future__ import annotations

from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from proxy import __version__
from proxy.core.usage import UsageRow
from proxy.metrics import MODELS, Metrics

ROW = UsageRow(
    id="use_1",
    request="req_secret",
    tenant="tenant_secret",
    key="key_secret",
    end_user="user_secret",
    conversation="conv_secret",
    upstream="main",
    asked_model="asked_secret",
    model="model_secret",
    stream=True,
    status="ok",
    error="error_secret",
    opened_at=1.0,
    first_token=0.03,
    duration=0.2,
    input=900,
    output=50,
    cached=300,
    cost=2_500_000_000,
    projected=1000,
    window=4000,
)
LABELS = {
    *(
        "route",
        "status",
        "model",
        "upstream",
        "purpose",
        "kind",
        "trigger",
        "writer",
        "outcome",
        "result",
        "le",
        "stage",
    ),
    *("class", "why", "by", "on", "moment", "operation", "version", "python"),
}


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, tuple(sorted(labels.items()))))


def test_a_closed_row_is_counted_under_the_configurations_entry() -> None:
    metrics = Metrics()
    metrics.row(ROW, "*")
    metrics.row(ROW, "*")
    assert value(metrics, "weirgate_upstream_calls_total", upstream="main", purpose="chat", status="ok") == 2
    assert value(metrics, "weirgate_tokens_total", model="other", kind="input") == 1800
    assert value(metrics, "weirgate_tokens_total", model="other", kind="output") == 100
    assert value(metrics, "weirgate_tokens_total", model="other", kind="cached") == 600
    assert value(metrics, "weirgate_cost_dollars_total", model="other") == 5.0
    assert value(metrics, "weirgate_first_token_seconds_count", model="other", upstream="main") == 2
    assert value(metrics, "weirgate_upstream_seconds_sum", model="other", upstream="main") == 0.4
    assert value(metrics, "weirgate_window_fill_ratio_bucket", model="other", le="0.2") == 0
    assert value(metrics, "weirgate_window_fill_ratio_bucket", model="other", le="0.3") == 2


def test_a_call_on_a_branch_that_is_paused_is_counted_by_why() -> None:
    metrics = Metrics()
    metrics.row(ROW, "*")
    metrics.row(msgspec.structs.replace(ROW, paused="still_above"), "*")
    assert value(metrics, "weirgate_paused_calls_total", why="still_above") == 1


def test_an_error_is_counted_by_its_class_and_a_refused_narrative_is_none() -> None:
    metrics = Metrics()
    for code in ("upstream_timeout", "invalid_value", "context_length_exceeded"):
        metrics.row(msgspec.structs.replace(ROW, status="failed", error=code), "*")
    metrics.row(msgspec.structs.replace(ROW, purpose="compaction", error="refused_no_headings"), "*")
    errors = {labels: count for (name, labels), count in samples(metrics).items() if name.endswith("errors_total")}
    classes = {dict(labels)["class"]: count for labels, count in errors.items()}
    assert classes == {"timeout": 1, "rejected": 1, "overflow": 1}


def test_a_summary_is_counted_apart_from_what_clients_see() -> None:
    metrics = Metrics()
    metrics.row(msgspec.structs.replace(ROW, purpose="compaction"), "fast")
    seen = {"model": "fast", "upstream": "main"}
    assert value(metrics, "weirgate_summariser_seconds_count", model="fast") == 1
    assert value(metrics, "weirgate_spent_dollars_total", model="fast", on="summaries") == 2.5
    assert value(metrics, "weirgate_first_token_seconds_count", **seen) == 0
    assert value(metrics, "weirgate_inter_token_seconds_count", **seen) == 0
    assert value(metrics, "weirgate_window_fill_ratio_count", model="fast") == 0
    assert value(metrics, "weirgate_upstream_seconds_count", **seen) == 1


def test_the_pace_of_a_stream_is_its_time_over_its_tokens_and_a_whole_answer_has_none() -> None:
    metrics = Metrics()
    metrics.row(msgspec.structs.replace(ROW, first_token=1.0, duration=3.0, output=21), "fast")
    metrics.row(msgspec.structs.replace(ROW, stream=False), "fast")
    assert value(metrics, "weirgate_inter_token_seconds_sum", model="fast", upstream="main") == 0.1
    assert value(metrics, "weirgate_first_token_seconds_count", model="fast", upstream="main") == 1


def test_a_call_without_a_price_is_counted_as_such() -> None:
    metrics = Metrics()
    metrics.row(msgspec.structs.replace(ROW, cost=None, unpriced=True), "fast")
    assert value(metrics, "weirgate_unpriced_calls_total", model="fast") == 1
    assert value(metrics, "weirgate_cost_dollars_total", model="fast") == 0


def test_what_has_not_happened_yet_is_zero_and_not_absent() -> None:
    metrics = Metrics()
    metrics.of("fast", "main")
    assert value(metrics, "weirgate_overflows_total", model="fast", outcome="reached_client") == 0
    assert value(metrics, "weirgate_uncached_tokens_total", model="fast", why="compacted") == 0
    assert value(metrics, "weirgate_spent_dollars_total", model="fast", on="cache") == 0
    assert value(metrics, "weirgate_compaction_pauses_total", why="no_notes") == 0


def test_models_beyond_the_bound_are_other_and_those_before_it_keep_their_names() -> None:
    metrics = Metrics()
    for number in range(MODELS + 50):
        metrics.row(ROW, f"m{number}")
    models = {dict(labels).get("model") for _, labels in samples(metrics)} - {None}
    assert len(models) == MODELS + 1 and {"m0", "other"} <= models
    assert value(metrics, "weirgate_tokens_total", model="other", kind="input") == 50 * ROW.input


def test_what_runs_is_said_once() -> None:
    (build,) = [labels for name, labels in samples(Metrics()) if name == "weirgate_build_info"]
    assert dict(build)["version"] == __version__


def test_what_a_row_does_not_know_is_not_counted() -> None:
    metrics = Metrics()
    unknown: dict[str, Any] = {"first_token": None, "duration": None, "cost": None, "projected": None, "window": None}
    metrics.row(msgspec.structs.replace(ROW, **unknown), "*")
    assert value(metrics, "weirgate_first_token_seconds_count", model="other", upstream="main") == 0
    assert value(metrics, "weirgate_upstream_seconds_count", model="other", upstream="main") == 0
    assert value(metrics, "weirgate_window_fill_ratio_count", model="other") == 0
    assert value(metrics, "weirgate_cost_dollars_total", model="other") == 0


def test_no_label_is_a_name_that_a_client_or_a_tenant_chose() -> None:
    metrics = Metrics()
    metrics.row(ROW, "fast")
    metrics.requests.labels("chat", "200").inc()
    metrics.request_seconds.labels("chat").observe(0.1)
    metrics.compactions.labels("fast", "auto", "builtin", "stored").inc()
    metrics.reloads.labels("ok").inc()
    assert "secret" not in metrics.exposition().decode()
    assert {name for _, labels in samples(metrics) for name, _ in labels} <= LABELS


def test_another_model_name_of_a_client_makes_no_new_series() -> None:
    metrics = Metrics()
    metrics.row(ROW, "*")
    before = set(samples(metrics))
    for number in range(50):
        metrics.row(msgspec.structs.replace(ROW, asked_model=f"a{number}", model=f"m{number}"), "*")
    assert set(samples(metrics)) == before


def test_the_exposition_is_in_base_units_and_every_family_is_described() -> None:
    metrics = Metrics()
    metrics.row(ROW, "*")
    families = list(text_string_to_metric_families(metrics.exposition().decode()))
    assert len(families) > 10
    for family in families:
        assert family.name.startswith("weirgate_")
        assert family.documentation
        assert not family.name.endswith(("_ms", "_milliseconds", "_kb"))


def test_two_processes_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.row(ROW, "*")
    assert value(other, "weirgate_tokens_total", model="other", kind="input") is None
    assert value(other, "weirgate_config_last_reload_successful") == 1
