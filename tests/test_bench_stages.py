"""What a stage took can be trusted: each sample is some stage's, nothing is lost, every stage names files that exist.

No figure of speed is looked at here.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.budget import OTHER, STAGES, WRITER, heaviest, read_stacks, stage_of, staged
from benchmarks.flames import LEAST, flame_graph, frames
from benchmarks.sampling import Sampler

ROOT = Path(__file__).resolve().parent.parent
LOOP = "asyncio/runners.py:Runner.run"
WORK = f"{LOOP};proxy/server/endpoints.py:Chat.work"


@pytest.mark.parametrize(
    ("stack", "stage"),
    (
        (LOOP, "server: sockets, HTTP, ASGI"),
        (f"{LOOP};uvloop/loop.py:read;proxy/server/guard.py:data_received", "server: sockets, HTTP, ASGI"),
        (WORK, "route, key, limits"),
        (f"{WORK};proxy/dialects/chat/request.py:decoding;json/decoder.py:decode", "envelope, digests, chain, lookup"),
        (f"{WORK};proxy/gateway.py:serve;proxy/core/chain.py:extend", "envelope, digests, chain, lookup"),
        (f"{WORK};proxy/gateway.py:serve;proxy/core/telling.py:prompt", "exchange: layers, measure, plan, steps"),
        (f"{WORK};proxy/attempt.py:run;proxy/dialects/chat/reply.py:read_answer", "answer: usage, events, relay"),
        ("runpy.py:run", OTHER),
    ),
)
def test_a_sample_belongs_to_the_innermost_function_that_a_stage_names(stack: str, stage: str) -> None:
    assert stage_of(stack) == stage


def test_stages_add_up_to_what_the_threads_took() -> None:
    stacks = read_stacks([f"{WORK} 30", f"{LOOP} 10", f"{WORK} 60", "", "no number"])
    found = staged(stacks, loop=200.0, writer=40.0)
    assert found["route, key, limits"] == 180.0 and found["server: sockets, HTTP, ASGI"] == 20.0
    assert found[WRITER] == 40.0 and sum(found.values()) == 240.0
    assert list(found) == [stage.name for stage in STAGES]


def test_the_heaviest_functions_are_told_with_and_without_what_they_call() -> None:
    stacks = read_stacks([f"{WORK} 75", f"{LOOP} 25"])
    assert heaviest(stacks, 5) == [(WORK.split(";")[1], 0.75, 0.75), (LOOP, 0.25, 1.0)]


def test_every_stage_names_source_that_exists() -> None:
    ours = [file for stage in STAGES for file in stage.files if file.startswith("proxy/")]
    assert ours and [file for file in ours if not (ROOT / file).exists()] == []


def test_a_stack_is_told_without_paths_of_the_machine() -> None:
    sampler = Sampler()
    sampler.look(0, None)
    sampler.forget(0, None)
    sampler.look(0, __import__("sys")._getframe())
    (line,) = [line for line in sampler.folded().splitlines() if "test_bench_stages" in line]
    assert str(ROOT) not in line and "tests/test_bench_stages.py:test_a_stack_is_told" in line


def test_a_flame_graph_shows_each_frame_on_its_caller_and_as_wide_as_its_share() -> None:
    stacks = read_stacks([f"{WORK};proxy/gateway.py:serve 50", f"{WORK} 25", f"{LOOP} 24", "runpy.py:run 1"])
    drawn = [(each.name.rpartition(":")[2], each.depth, each.share) for each in frames(stacks)]
    assert drawn == [("Runner.run", 0, 0.99), ("run", 0, 0.01), ("Chat.work", 1, 0.75), ("serve", 2, 0.5)]
    inner = {each.name: each for each in frames(stacks)}
    work, serve = inner[WORK.split(";")[1]], inner["proxy/gateway.py:serve"]
    assert work.start <= serve.start and serve.start + serve.share <= work.start + work.share


def test_a_flame_graph_leaves_out_what_cannot_be_seen_and_escapes_names() -> None:
    stacks = read_stacks([f"{LOOP};a.py:<lambda> {round(1 / LEAST)}", f"{LOOP};b.py:narrow 1"])
    text = flame_graph("1 KB & more", stacks)
    ElementTree.fromstring(text)
    assert "narrow" not in text and "&lt;lambda&gt;" in text and "1 KB &amp; more" in text
