"""How large a prompt is, and how large it may be. All sizes are tokens.

One number decides, plans and verifies: what the provider reported for the same beginning, plus a learned ratio times
our own size of what was added. Our own size is an estimate from the classes of bytes in a text; exact counts are
asked for only near a decision (`exchange`). Nothing here knows a tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from proxy.core.conversation import Block, Media, Message, Reasoning, Text, ToolCall, ToolResult
from proxy.core.policy import Policy
from proxy.core.steps import Anchor, Limits, Ratio

MESSAGE_OVERHEAD: Final = 4
"""Tokens of role and separators around each message (OpenAI's published counting recipe uses 3 to 4)."""

PROMPT_OVERHEAD: Final = 3
LEAST_OUTPUT: Final = 16
"""OpenAI's Responses API refuses a smaller output limit."""

_LOWER: Final = bytes(range(97, 123))

_UPPER, _DIGIT, _BLANK, _BREAK, _TRAIL, _LEAD, _FOUR = b"udbntlf"
_CLASSES: Final = bytes.maketrans(
    bytes(range(65, 91)) + b"0123456789" + b" \t" + b"\r\n" + bytes(range(0x80, 0x100)),
    b"u" * 26 + b"d" * 10 + b"b" * 2 + b"n" * 2 + b"t" * 0x40 + b"l" * 0x30 + b"f" * 0x10,
)
"""One letter for each byte that is no lower case one and no mark."""

# Tokens per byte of each class: least squares on the relative error over 6,000 recorded messages against o200k_base;
# on messages over 50 tokens half of the estimates fall within 0.91 to 1.04 of the exact count.
_PER_LOWER: Final = 0.194
_PER_UPPER: Final = 0.572
_PER_DIGIT: Final = 0.862
_PER_BLANK: Final = 0.17
_PER_BREAK: Final = 0.384
_PER_MARK: Final = 0.48
_PER_TRAIL: Final = 0.33
_PER_LEAD: Final = 0.17
_PER_FOUR: Final = 2.5
# Base64 and the like: mixed case without blanks splits into short pieces.
_DENSE_FACTOR: Final = 1.45

_LEAST_RATIO: Final = 0.4
_MOST_RATIO: Final = 4.0
_MEMORY: Final = 16


def estimate(text: str) -> int:
    """Tokens of `text`, estimated from its bytes without a tokenizer. Never raises; 0 only for the empty string."""
    data = text.encode("utf-8", "replace")
    size = len(data)
    if not size:
        return 0
    # Most of a text is lower case: what is left is counted, by class, in a fraction of its bytes.
    kinds = data.translate(_CLASSES, _LOWER)
    count, left = kinds.count, len(kinds)
    upper, digit, blank, line = count(_UPPER), count(_DIGIT), count(_BLANK), count(_BREAK)
    trail = lead = four = 0
    if not data.isascii():
        trail, lead, four = count(_TRAIL), count(_LEAD), count(_FOUR)
    mark = left - upper - digit - blank - line - trail - lead - four
    total = (size - left) * _PER_LOWER + upper * _PER_UPPER + digit * _PER_DIGIT + blank * _PER_BLANK
    total += line * _PER_BREAK + mark * _PER_MARK
    if size > 64 and upper * 5 > size and blank * 50 < size:
        total *= _DENSE_FACTOR
    if trail or lead or four:
        total += trail * _PER_TRAIL + lead * _PER_LEAD + four * _PER_FOUR
    return round(total) or 1


def media_tokens(media: Media) -> int:
    """Tokens of an image by OpenAI's tile rule (fit 2048, short side 768, 85 + 170 per 512 px tile); other media by
    size. Unknown pixels count as a full-size image, so that an image never weighs nothing."""
    if media.kind != "image":
        return max(16, media.size // 64)
    if media.detail == "low":
        return 85
    width, height = media.width or 1024, media.height or 1024
    shrink = min(1.0, 2048 / max(width, height))
    shrink = min(shrink, 768 / max(1.0, min(width, height) * shrink) * shrink)
    across = -(-int(width * shrink) // 512) or 1
    down = -(-int(height * shrink) // 512) or 1
    return 85 + 170 * across * down


def block_tokens(block: Block) -> int:
    if type(block) is Text or type(block) is ToolResult:
        return estimate(block.text) + (sum(map(media_tokens, block.media)) if block.media else 0)
    if type(block) is ToolCall:
        return estimate(block.name) + estimate(block.arguments) + 6
    if type(block) is Reasoning:
        return estimate(block.text)
    return 0


def message_tokens(blocks: Iterable[Block], name: str | None = None) -> int:
    """Estimated tokens of a message, its overhead included."""
    return MESSAGE_OVERHEAD + sum(map(block_tokens, blocks)) + (estimate(name) if name else 0)


def prompt_tokens(messages: Iterable[Message], tools_tokens: int) -> int:
    """Estimated tokens of a whole prompt."""
    return PROMPT_OVERHEAD + tools_tokens + sum([message.tokens for message in messages])


def countable(item: Message) -> str:
    """What of a message a tokenizer can count: all that `block_tokens` estimates but its media."""
    blocks = item.blocks
    if len(blocks) == 1 and (type(blocks[0]) is Text or type(blocks[0]) is ToolResult):
        return blocks[0].text  # most of a history
    reasoning = "".join(block.text for block in blocks if type(block) is Reasoning)
    return item.text + reasoning + "".join(call.name + call.arguments for call in item.calls)


def uncountable(item: Message) -> int:
    """Tokens of a message's media, which no tokenizer sees; to be added to an exact count."""
    if not item.media:
        return 0
    shown = (block.media for block in item.blocks if isinstance(block, Text | ToolResult))
    return sum(media_tokens(media) for several in shown for media in several)


def learn(ratio: Ratio, reported: int, counted: int) -> Ratio:
    """`ratio` with one more observation: a running mean over about the last sixteen, bounded against bad reports."""
    if reported <= 0 or counted <= 0:
        return ratio
    seen = reported / counted
    if not _LEAST_RATIO <= seen <= _MOST_RATIO:
        seen = _LEAST_RATIO if seen < _LEAST_RATIO else _MOST_RATIO
    if ratio.samples == 0:
        return Ratio(value=seen, samples=1)
    weight = 1.0 / min(ratio.samples + 1, _MEMORY)
    return Ratio(value=ratio.value + (seen - ratio.value) * weight, samples=ratio.samples + 1)


def project(estimated: int, ratio: Ratio, anchor: Anchor | None = None) -> int:
    """Tokens the provider will report for a prompt that we estimate at `estimated`.

    With an anchor (same beginning, same shape) only what was added since is estimated.
    """
    if anchor is None:
        return round(estimated * ratio.value)
    return max(0, anchor.reported + round((estimated - anchor.estimated) * ratio.value))


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What one call may fill: `target` is what a compaction aims at, `trigger` where one is made, `fit` what leaves
    the output its reserve, `most` what may be sent when nothing smaller is possible, `window` the limit itself."""

    window: int
    trigger: int
    target: int
    fit: int
    most: int


def room(policy: Policy, limits: Limits, max_output: int | None) -> Room | None:
    """None where no window is known: then only the provider's own refusal can tell (reactive only).

    Trigger: min(compact_at x W, W - reserve - margin); the reserve is the requested output, at most
    `reserve_max_share` of W. Where an input limit is known apart, the output does not count against it.
    """
    window = limits.total or limits.input
    if not window:
        return None
    if limits.input and limits.input < window:
        window = limits.input
    margin = max(16, window // 50)
    fit = most = window - margin
    if limits.total:
        fit = min(fit, limits.total - max(reserve(policy, limits, max_output), LEAST_OUTPUT) - margin)
        most = min(most, limits.total - LEAST_OUTPUT - margin)
    trigger = max(1, min(int(policy.compact_at * window), fit))
    return Room(
        window=window,
        trigger=trigger,
        target=min(int(policy.target * window), trigger),
        fit=max(1, fit),
        most=max(1, most),
    )


def reserve(policy: Policy, limits: Limits, max_output: int | None) -> int:
    """Tokens of the window that are held back for the answer; none where the output does not count against it."""
    return min(max_output or 0, int(policy.reserve_max_share * limits.total)) if limits.total else 0
