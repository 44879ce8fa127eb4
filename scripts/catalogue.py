"""Makes proxy/catalogue/ from the wheel of litellm named below: windows, prices, levels of effort, token ranks.

    python scripts/catalogue.py [--wheel FILE]

The wheel is read as a zip and never imported or installed. To move to a newer litellm: change VERSION, run, look at
the difference of models.json, commit both. tests/test_catalogue.py fails while the two disagree.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

VERSION = "1.110.2"

PRICES = "litellm/model_prices_and_context_window_backup.json"
RANKS = "litellm/litellm_core_utils/tokenizers/"
# tiktoken's cache names a file after the SHA-1 of the address it would be fetched from: o200k_base and cl100k_base.
ENCODINGS = ("fb374d419588a4632f3f557e76b4b70aebbca790", "9b5ad71b2ce5302211f9c61530b329a4922fc6a4")
# Models that are asked through /chat/completions, /embeddings or (later) /responses.
MODES = ("chat", "embedding", "responses")
# Larger than any window sold; above it a figure is a typing error.
LARGEST = 20_000_000
# litellm states the input limit of these OpenAI models; the provider's window is input and output together.
SPLIT = {(272_000, 128_000), (922_000, 128_000)}
SPLIT_NAMES = re.compile(r"(^|[/.])gpt-[56]")
# Levels of reasoning effort, lowest first: core/effort.py's. In a row each is a bit.
LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh")
# Providers whose list marks every model that reasons: there, and only there, no mark is a no.
MARKED = {"anthropic", "dashscope", "deepseek", "gemini", "mistral", "openai", "xai"}
# Models that are switched on or off, or have other levels than the usual three, by their provider's documentation (the
# pages are named in dialects/chat/effort.py). None: marked as reasoning, but whether it takes a level is not known.
DOCUMENTED: tuple[tuple[str, re.Pattern[str], tuple[str, ...] | None], ...] = (
    ("dashscope", re.compile(r"qwq|-thinking"), ("high",)),
    ("dashscope", re.compile(r""), ("none", "high")),
    ("deepseek", re.compile(r"-r1|reasoner"), ("high",)),
    ("deepseek", re.compile(r""), ("none", "low", "high")),
    ("groq", re.compile(r"qwen"), None),
    ("mistral", re.compile(r"magistral"), ()),
    ("openai", re.compile(r"-chat(-|$)|^gpt-5-pro"), None),
    ("azure", re.compile(r"-chat(-|$)|gpt-5-pro"), None),
    ("xai", re.compile(r"grok-4\.20|grok-build|grok-code"), None),
    ("zai", re.compile(r""), ("none", "high")),
)
CL100K = re.compile(r"(^|[/.])(gpt-4($|-)|gpt-3\.5|gpt-35|text-embedding)")

FOLDER = Path(__file__).resolve().parent.parent / "proxy" / "catalogue"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--wheel", type=Path, help="use this wheel instead of downloading it")
    options.add_argument("--into", type=Path, default=FOLDER, help="folder to write")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        wheel = chosen.wheel or download(Path(temporary))
        with zipfile.ZipFile(wheel) as archive:
            prices = archive.read(PRICES)
            ranks = {name: archive.read(RANKS + name) for name in ENCODINGS}
    write(chosen.into, prices, ranks)
    return 0


def download(into: Path) -> Path:
    """The wheel, from whatever index pip is set up with."""
    wanted = [f"litellm=={VERSION}", "--no-deps", "--only-binary", ":all:", "--quiet", "--dest", str(into)]
    subprocess.run([sys.executable, "-m", "pip", "download", *wanted], check=True)
    return next(into.glob("litellm-*.whl"))


def write(folder: Path, prices: bytes, ranks: dict[str, bytes]) -> None:
    rows = {name: row(name, entry) for name, entry in json.loads(prices).items() if entry.get("mode") in MODES}
    lines = ",\n".join(f"{json.dumps(name)}:{json.dumps(rows[name], separators=(',', ':'))}" for name in sorted(rows))
    origin = {"file": PRICES, "sha256": sha256(prices)}
    head = f'"source":"litellm","version":{json.dumps(VERSION)},"origin":{json.dumps(origin)}'
    models = f'{{{head},"models":{{\n{lines}\n}}}}\n'.encode()
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    (folder / "models.json").write_bytes(models)
    hashes = {"models.json": sha256(models)}
    for name, data in ranks.items():
        (folder / "ranks" / name).write_bytes(data)
        hashes[f"ranks/{name}"] = sha256(data)
    (folder / "hashes.json").write_text(json.dumps(hashes, indent=2) + "\n")
    print(f"{len(rows)} models, {len(models)} bytes")


def row(name: str, entry: dict[str, Any]) -> list[Any]:
    """provider, window, input limit, largest output, input, output, cached, cache write (nano-dollars), encoding,
    levels of effort (bits), whether thinking is adaptive."""
    taken, given = tokens(entry.get("max_input_tokens")), tokens(entry.get("max_output_tokens"))
    window, limit = taken, None
    if taken and given and (taken, given) in SPLIT and SPLIT_NAMES.search(name):
        window, limit = taken + given, taken
    # "Output = window" (or a few tokens less) is how lists say that output has no limit of its own; taken as one,
    # nothing would be left for input.
    if window and given and given * 10 >= window * 9:
        given = None
    prices = (
        nano(entry.get("input_cost_per_token")),
        nano(entry.get("output_cost_per_token")),
        nano(entry.get("cache_read_input_token_cost")),
        nano(entry.get("cache_creation_input_token_cost")),
    )
    if not any(prices[:2]):  # both nothing: unknown or not sold by the token, never "free"
        prices = (None, None, None, None)
    # A write "for nothing" means that the provider does not price it apart: it costs what input costs.
    provider = entry.get("litellm_provider") or ""
    encoding = "cl100k_base" if CL100K.search(name) else None
    effort = efforts(name, entry)
    bits = None if effort is None else sum(1 << LEVELS.index(level) for level in effort)
    adaptive = bool(entry.get("supports_adaptive_thinking")) or None
    made = [provider, window, limit, given, *prices[:3], prices[3] or None, encoding, bits, adaptive]
    while made[-1] is None:
        made.pop()
    return made


def efforts(name: str, entry: dict[str, Any]) -> tuple[str, ...] | None:
    """The levels of reasoning effort of a model; () where it cannot reason, None where that is not known."""
    provider = entry.get("litellm_provider") or ""
    reasons = entry.get("supports_reasoning")
    if entry.get("mode") == "embedding" or reasons is False:
        return ()
    if not reasons:
        return () if provider in MARKED else None
    for owner, pattern, levels in DOCUMENTED:
        if provider == owner and pattern.search(name):
            return levels
    stated = entry.get("reasoning_effort_levels")
    if isinstance(stated, list) and stated:
        return tuple(level for level in LEVELS if level in stated)
    usual = {"low", "medium", "high"} if stated is None else set()
    usual |= {level for level in LEVELS if entry.get(f"supports_{level}_reasoning_effort")}
    usual -= {level for level in LEVELS if entry.get(f"supports_{level}_reasoning_effort") is False}
    if provider == "anthropic":
        # Its thinking is off, or switched off, where it is not always on.
        usual |= set() if entry.get("thinking_always_on") else {"none"}
    return tuple(level for level in LEVELS if level in usual)


def tokens(value: object) -> int | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LARGEST
    return int(value) if known else None  # type: ignore[call-overload]


def nano(dollars: object) -> int | None:
    """Whole nano-dollars, half up: a fraction of one is lost (at most a few percent of the very cheapest prices)."""
    if not isinstance(dollars, int | float) or isinstance(dollars, bool) or dollars < 0:
        return None
    return int((Decimal(repr(dollars)) * 10**9).quantize(Decimal(1), ROUND_HALF_UP))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
