"""One conversation, held with the OpenAI SDK exactly as any program would hold it: the whole history every time.

The same code speaks to the model directly and through the gateway; only the base URL differs. A turn that fails is
taken out again, which is the kindest a client without a gateway can be to itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
from openai import APIError, APIStatusError, OpenAI, Stream
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

ANSWER_TOKENS = 24
TURN_SECONDS = 90.0


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """One user turn and what came of it.

    `tokens` is how full the window was when the model began to answer: what the gateway's header says, else the
    reported usage, else what the refusal names. `prompt` and `completion` are the reported usage, 0 without one.
    `window` is None where nobody stated it. `compaction` is the gateway's word (none, auto, recovered), `notes` who
    wrote those in the prompt: builtin or a model.
    """

    number: int
    answered: bool
    tokens: int
    window: int | None
    compaction: str
    notes: str = ""
    prompt: int
    completion: int
    seconds: float
    answer: str
    error: str = ""


class _Heard(msgspec.Struct, kw_only=True):
    text: str = ""
    prompt: int = 0
    completion: int = 0
    finish: str | None = None


def context(header: str | None) -> dict[str, str]:
    """`tokens=812; window=2048; compaction=none` as a mapping; empty without the header."""
    pairs = (part.partition("=") for part in (header or "").split(";"))
    return {key.strip(): value.strip() for key, _, value in pairs if value}


def compacted(spoken: Sequence[Spoken]) -> list[Spoken]:
    """The turns at which the prompt became smaller because the gateway compacted it.

    A turn that merely rests on an earlier compaction is none: its prompt grew.
    """
    return [after for before, after in pairwise(spoken) if after.compaction != "none" and after.tokens < before.tokens]


def hold(client: OpenAI, model: str, system: str, turns: Sequence[str]) -> Iterator[Spoken]:
    """Say each turn, hear the answer to its end, report it. Failures are reported, not raised."""
    history: list[ChatCompletionMessageParam] = [{"role": "system", "content": system}]
    for number, words in enumerate(turns, 1):
        spoken = _say(client, model, [*history, {"role": "user", "content": words}], number)
        if spoken.answered:
            history.append({"role": "user", "content": words})
            history.append({"role": "assistant", "content": spoken.answer})
        yield spoken


def _say(client: OpenAI, model: str, messages: list[ChatCompletionMessageParam], number: int) -> Spoken:
    began = time.monotonic()
    header: dict[str, str] = {}
    heard = _Heard()
    error = ""
    refused = 0
    try:
        raw = client.chat.completions.with_raw_response.create(
            model=model,
            messages=messages,
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=ANSWER_TOKENS,
            temperature=0,
            seed=7,
        )
        header = context(raw.headers.get("x-weirgate-context"))
        _listen(raw.parse(), heard)
    except APIStatusError as failure:
        error, refused = f"{failure.status_code}: {_reason(failure)}", _asked(failure)
    except APIError as failure:
        error = f"{type(failure).__name__}: {failure.message}"
    window = header.get("window", "")
    tokens = header.get("tokens", "")
    return Spoken(
        number=number,
        answered=not error and bool(heard.text) and heard.finish is not None,
        tokens=int(tokens) if tokens.isdigit() else heard.prompt or refused,
        window=int(window) if window.isdigit() else None,
        compaction=header.get("compaction", "none"),
        notes=header.get("notes", ""),
        prompt=heard.prompt,
        completion=heard.completion,
        seconds=round(time.monotonic() - began, 2),
        answer=heard.text,
        error=error or ("" if heard.text else "an empty answer"),
    )


def _listen(stream: Stream[ChatCompletionChunk], heard: _Heard) -> None:
    for chunk in stream:
        if chunk.usage is not None:
            heard.prompt, heard.completion = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        for choice in chunk.choices:
            heard.text += choice.delta.content or ""
            heard.finish = choice.finish_reason or heard.finish


def _reason(failure: APIStatusError) -> str:
    body = failure.body
    message = body.get("message") if isinstance(body, dict) else None
    return str(message or failure.message)


def _asked(failure: APIStatusError) -> int:
    """How many tokens the refused prompt had, where the server says so (llama.cpp does)."""
    body = failure.body
    number = body.get("n_prompt_tokens") if isinstance(body, dict) else None
    return number if isinstance(number, int) else 0
