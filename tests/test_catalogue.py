"""The catalogue: unaltered, current with its pin, and honest about what it does not know."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import zipfile
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import tiktoken
from tiktoken_ext import openai_public

from proxy.catalogue import Catalogue, Models, ranks_folder, verify
from proxy.core.effort import LEVELS

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "proxy" / "catalogue"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_catalogue", ROOT / "scripts" / "catalogue.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue()


def test_the_data_is_what_the_script_wrote() -> None:
    assert verify() == []
    assert verify(DATA) == []


def test_an_altered_or_missing_file_is_named(tmp_path: Path) -> None:
    copy = tmp_path / "catalogue"
    shutil.copytree(DATA, copy, ignore=shutil.ignore_patterns("__pycache__"))
    models = copy / "models.json"
    models.write_bytes(models.read_bytes().replace(b'"gpt-4o"', b'"gpt-4O"', 1))
    next((copy / "ranks").iterdir()).unlink()
    said = " ".join(verify(copy))
    assert "models.json was altered" in said and "ranks/" in said and "is missing" in said
    (copy / "hashes.json").write_text("{")
    assert verify(copy) == ["catalogue: hashes.json is missing or broken"]


def test_the_data_is_not_behind_the_pin_of_the_script(script: ModuleType, catalogue: Catalogue) -> None:
    assert catalogue.version == script.VERSION, "run python scripts/catalogue.py"


def test_where_litellm_itself_is_locked_it_is_the_release_of_the_catalogue(catalogue: Catalogue) -> None:
    locked = {
        match[1]
        for file in (ROOT / "requirements").glob("*.txt")
        for match in re.finditer(r"^litellm==(\S+)", file.read_text(), re.MULTILINE)
    }
    assert locked <= {catalogue.version}


def test_a_second_run_of_the_script_gives_the_same_bytes(tmp_path: Path, script: ModuleType) -> None:
    prices = (
        b'{"b": {"mode": "chat", "max_input_tokens": 8}, "c": {"mode": "rerank"},'
        b' "a": {"mode": "embedding", "input_cost_per_token": 1e-07}}'
    )
    for name in ("one", "two"):
        script.write(tmp_path / name, prices, {"rank": b"x"})
    assert (tmp_path / "one" / "models.json").read_bytes() == (tmp_path / "two" / "models.json").read_bytes()
    assert verify(tmp_path / "one") == []
    made = msgspec.json.decode((tmp_path / "one" / "models.json").read_bytes(), type=Models)
    assert [*made.models] == ["a", "b"]


def test_the_script_reads_a_wheel_without_importing_it(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "litellm.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(script.PRICES, "{}")
        for name in script.ENCODINGS:
            archive.writestr(script.RANKS + name, name)
    monkeypatch.setattr("sys.argv", ["catalogue.py", "--wheel", str(wheel), "--into", str(tmp_path / "made")])
    assert script.main() == 0
    assert verify(tmp_path / "made") == []
    tree = ast.parse((ROOT / "scripts" / "catalogue.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert "litellm" not in imported


@pytest.mark.parametrize(
    ("entry", "row"),
    [
        ({"max_input_tokens": 100, "max_output_tokens": 10}, ["", 100, None, 10]),
        ({"max_input_tokens": 8192, "max_output_tokens": 8192}, ["", 8192]),
        ({"max_input_tokens": 4096, "max_output_tokens": 32_000}, ["", 4096]),
        ({"max_input_tokens": 1_000_000, "max_output_tokens": 999_990}, ["", 1_000_000]),
        ({"max_input_tokens": 0, "max_output_tokens": "many"}, [""]),
        ({"max_input_tokens": 10**12}, [""]),
        ({"max_input_tokens": True}, [""]),
        ({"input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05}, ["", None, None, None, 2500, 10_000]),
        ({"input_cost_per_token": 0.0, "output_cost_per_token": 0.0}, [""]),
        ({"input_cost_per_token": -1, "output_cost_per_token": None}, [""]),
        (
            {"input_cost_per_token": 2e-7, "output_cost_per_token": 1e-6, "cache_creation_input_token_cost": 0.0},
            ["", None, None, None, 200, 1000],
        ),
        ({"input_cost_per_token": 5.5e-9, "output_cost_per_token": 1e-9}, ["", None, None, None, 6, 1]),
    ],
)
def test_bogus_figures_are_clamped_and_nothing_is_free_by_accident(
    script: ModuleType, entry: dict[str, object], row: list[object]
) -> None:
    assert script.row("x", entry) == row


@pytest.mark.parametrize(
    ("name", "entry", "levels"),
    [
        ("gpt-4o", {"litellm_provider": "openai"}, ()),
        ("somebody/m", {"litellm_provider": "somebody"}, None),
        ("somebody/m", {"litellm_provider": "somebody", "supports_reasoning": False}, ()),
        ("o3", {"litellm_provider": "openai", "supports_reasoning": True}, ("low", "medium", "high")),
        (
            "gpt-5",
            {
                "litellm_provider": "openai",
                "supports_reasoning": True,
                "supports_minimal_reasoning_effort": True,
                "supports_none_reasoning_effort": False,
                "supports_low_reasoning_effort": False,
                "supports_xhigh_reasoning_effort": True,
            },
            ("minimal", "medium", "high", "xhigh"),
        ),
        (
            "mistral/m",
            {"litellm_provider": "mistral", "supports_reasoning": True, "reasoning_effort_levels": ["high", "none"]},
            ("none", "high"),
        ),
        ("mistral/magistral-x", {"litellm_provider": "mistral", "supports_reasoning": True}, ()),
        ("deepseek/deepseek-v9", {"litellm_provider": "deepseek", "supports_reasoning": True}, ("none", "low", "high")),
        ("dashscope/x-thinking", {"litellm_provider": "dashscope", "supports_reasoning": True}, ("high",)),
        ("groq/qwen/x", {"litellm_provider": "groq", "supports_reasoning": True}, None),
        (
            "claude-x",
            {"litellm_provider": "anthropic", "supports_reasoning": True, "thinking_always_on": True},
            ("low", "medium", "high"),
        ),
        (
            "claude-y",
            {"litellm_provider": "anthropic", "supports_reasoning": True, "supports_adaptive_thinking": True},
            ("none", "low", "medium", "high"),
        ),
        ("e", {"mode": "embedding", "supports_reasoning": True}, ()),
    ],
)
def test_the_levels_of_effort_are_what_the_list_marks_and_the_provider_documents(
    script: ModuleType, name: str, entry: dict[str, object], levels: tuple[str, ...] | None
) -> None:
    assert script.efforts(name, entry) == levels


def test_a_window_that_is_input_and_output_together_is_told_as_such(script: ModuleType, catalogue: Catalogue) -> None:
    card = catalogue.card("gpt-5.1")
    assert card is not None and (card.window, card.input_limit, card.max_output) == (400_000, 272_000, 128_000)
    assert script.row("other", {"max_input_tokens": 272_000, "max_output_tokens": 128_000}) == [
        "",
        272_000,
        None,
        128_000,
    ]


def test_no_entry_leaves_nothing_for_input() -> None:
    made = msgspec.json.decode((DATA / "models.json").read_bytes(), type=Models)
    assert len(made.models) > 3000
    for name, row in made.models.items():
        assert row.window is None or row.window > 0, name
        if row.window and row.max_output:
            assert row.max_output < row.window * 0.9, name
        if row.input is not None or row.output is not None:
            assert row.input or row.output, name


def test_the_file_is_small() -> None:
    assert (DATA / "models.json").stat().st_size < 1_000_000


def test_a_known_model_has_window_price_and_encoding(catalogue: Catalogue) -> None:
    card = catalogue.card("gpt-4o")
    assert card is not None and card.tariff is not None
    assert (card.window, card.max_output, card.encoding) == (128_000, 16_384, "o200k_base")
    assert (card.tariff.input, card.tariff.output, card.tariff.cached) == (2500, 10_000, 1250)
    assert (card.tariff.source, card.tariff.version) == ("litellm", catalogue.version)


@pytest.mark.parametrize(
    "name",
    [
        "gpt-4o",
        "GPT-4O",
        "openai/gpt-4o",
        "gpt-4o-2031-01-31",
        "openai/GPT-4o-20310131",
        "gpt-4o-latest",
        "gpt-4o@20310131",
    ],
)
def test_a_model_is_found_by_the_names_people_use(catalogue: Catalogue, name: str) -> None:
    card = catalogue.card(name)
    assert card is not None and card.tariff is not None
    assert (card.name, card.window, card.tariff.input) == (name, 128_000, 2500)


def test_a_dated_model_of_its_own_is_not_the_undated_one(catalogue: Catalogue) -> None:
    card = catalogue.card("gpt-4o-2024-05-13")
    assert card is not None and card.tariff is not None and card.tariff.input == 5000


def test_claude_is_found_with_dots_as_well(catalogue: Catalogue) -> None:
    cards = [catalogue.card(name) for name in ("claude-sonnet-4-5", "anthropic/claude-sonnet-4.5", "claude-sonnet-4.5")]
    assert (
        [card and (card.window, card.tariff) for card in cards] == [(cards[0].window, cards[0].tariff)] * 3
        if cards[0]
        else False
    )


@pytest.mark.parametrize("name", ["gpt-4o:free", "somebody/gpt-4o", "Qwen/Qwen3-32B", "llama3:8b"])
def test_a_model_of_another_host_has_a_window_but_never_a_price(catalogue: Catalogue, name: str) -> None:
    card = catalogue.card(name)
    assert card is not None and card.window is not None and card.tariff is None


def test_hosts_that_disagree_are_told_by_their_majority(tmp_path: Path, script: ModuleType) -> None:
    windows = {"a/m": 12_288, "b/m": 131_072, "c/m": 131_072, "d/m": 1_000_000, "e/n": 64, "f/n": 32}
    entries = {name: {"mode": "chat", "max_input_tokens": window} for name, window in windows.items()}
    script.write(tmp_path, msgspec.json.encode(entries), {})
    made = Catalogue(tmp_path / "models.json")
    found = [made.card(name) for name in ("m", "other/M", "n")]
    assert [card and card.window for card in found] == [131_072, 131_072, 32], (
        "where they are equally many, the smaller"
    )


def test_the_address_of_a_provider_tells_whose_price_holds(catalogue: Catalogue) -> None:
    nowhere = catalogue.card("mistral-large-latest", host="127.0.0.1")
    at_home = catalogue.card("mistral-large-latest", host="api.mistral.ai")
    fake = catalogue.card("mistral-large-latest", host="api.mistral.ai.example.com")
    assert nowhere is not None and nowhere.tariff is None
    assert at_home is not None and at_home.tariff is not None
    assert fake == nowhere


def test_levels_of_effort_survive_the_file(tmp_path: Path, script: ModuleType, catalogue: Catalogue) -> None:
    assert script.LEVELS == LEVELS
    entries = {
        "m": {"mode": "chat", "litellm_provider": "openai", "supports_reasoning": True},
        "n": {"mode": "chat", "litellm_provider": "openai"},
        "o": {"mode": "chat", "litellm_provider": "somebody"},
    }
    script.write(tmp_path, msgspec.json.encode(entries), {})
    cards = [Catalogue(tmp_path / "models.json").card(name) for name in "mno"]
    assert [card and card.efforts for card in cards] == [("low", "medium", "high"), (), None]
    for name in ("gpt-5.1", "claude-opus-4-8", "o3"):
        card = catalogue.card(name)
        assert card is not None and card.efforts is not None and "high" in card.efforts


@pytest.mark.parametrize(
    ("model", "host", "means"),
    [
        ("gpt-5", "api.openai.com", "reasoning_effort"),
        ("gpt-5", "eu.openai.azure.com", "reasoning_effort"),
        ("claude-sonnet-4-5", "api.anthropic.com", "thinking_budget"),
        ("claude-opus-4-8", "api.anthropic.com", "thinking_adaptive"),
        ("claude-opus-4-8", "openrouter.ai", "reasoning"),
        ("Qwen/Qwen3-32B", "openrouter.ai", "reasoning"),
        ("gpt-5", "127.0.0.1", None),
        ("gpt-5", "api.openai.com.example.com", None),
    ],
)
def test_the_address_of_a_provider_tells_how_it_hears_of_an_effort(
    catalogue: Catalogue, model: str, host: str, means: str | None
) -> None:
    card = catalogue.card(model, host=host)
    assert card is not None and card.means == means
    assert catalogue.means("api.anthropic.com") == "thinking_budget"


@pytest.mark.parametrize("name", ["", "/", ":", "nobody-knows-this", "*", "x" * 10_000, "\ud800"])
def test_an_unknown_name_is_nothing(catalogue: Catalogue, name: str) -> None:
    assert catalogue.card(name) is None


def test_reading_happens_once_and_not_before_the_first_question(tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    made = Catalogue(file)
    shutil.copy(DATA / "models.json", file)
    assert made.card("gpt-4o") is not None
    file.unlink()
    assert made.card("gpt-4") is not None


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
def test_the_ranks_are_those_that_tiktoken_expects(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(ranks_folder()))
    monkeypatch.setattr("tiktoken.load.read_file", _no_network)
    built = getattr(openai_public, name)()  # checks the hash that tiktoken's own source states
    encoding = tiktoken.Encoding(**built)
    assert (
        encoding.decode(encoding.encode("A weir keeps a river from overflowing. 堰"))
        == "A weir keeps a river from overflowing. 堰"
    )


def _no_network(path: str) -> bytes:
    if path.startswith("http"):
        raise AssertionError(f"tiktoken wanted to download {path}")
    return Path(path).read_bytes()


def test_models_name_only_encodings_whose_ranks_are_here(script: ModuleType) -> None:
    made = msgspec.json.decode((DATA / "models.json").read_bytes(), type=Models)
    assert {row.encoding for row in made.models.values()} == {None, "cl100k_base"}
    assert {each.name for each in ranks_folder().iterdir()} == set(script.ENCODINGS)
