"""Chapters 2.1 and 2.2 of docs/failure-modes.md: pairing, roles, reasoning and opaque members."""

from __future__ import annotations

from tests.mutations.listed import Mutation

GROUPS, TAIL, COMPACTION = "proxy/core/groups.py", "proxy/core/tail.py", "proxy/core/compaction.py"

MUTATIONS = (
    Mutation("F1", TAIL, "            self.start = first\n", "            self.start = group.last\n"),
    Mutation(
        "F2",
        GROUPS,
        "fixed.extend(answers)",
        "fixed.extend(answer for answer in answers if answer.text != NO_RESULT)",
    ),
    Mutation(
        "F3",
        GROUPS,
        "            while last + 1 < len(messages) and messages[last + 1].results:",
        "            if last + 1 < len(messages) and messages[last + 1].results:",
    ),
    Mutation("F4", TAIL, "first = history.newest", "first = history.turns[-1].first"),
    Mutation("F5", GROUPS, "fixed.append(_quoted(item))", "fixed.append(item)"),
    Mutation(
        "F6",
        GROUPS,
        "if any(call.id in again for place, call in enumerate(wanted) if place not in found):",
        "if not again and again:",
    ),
    Mutation("F7", GROUPS, "id=next(name for name in names if name not in taken))", "id=block.id)"),
    Mutation("F9", GROUPS, 'if item.role == "user" or len(found)', 'if item.role != "tool" or len(found)'),
    Mutation("F10", GROUPS, "        elif item.empty:\n", "        elif item.empty and item.calls:\n"),
    Mutation(
        "F11",
        COMPACTION,
        "newest(messages[:cut]) if compaction.notes.part else ()",
        "newest(messages[:cut]) if compaction.notes.pins and not compaction.notes.part else ()",
    ),
    Mutation(
        "F12", "proxy/core/telling.py", "if self.snap.policy.alternate:", "if self.snap.policy.alternate and used:"
    ),
    Mutation(
        "F13",
        COMPACTION,
        'return message("user", (Text(text=notes_text',
        'return message("system", (Text(text=notes_text',
    ),
    Mutation("F14", GROUPS, 'item.role not in ("user", "assistant"):', 'item.role != "assistant":'),
    Mutation("F15", TAIL, "shape.widen(policy.tail_messages, min(allowed, fit))", "shape.widen(0, 0)"),
    Mutation(
        "F16",
        "proxy/core/chain.py",
        "link = current + item.digest",
        "link = known.start + item.digest",
    ),
    Mutation(
        "F18",
        "proxy/core/quoting.py",
        'return f"the model calls {_name(block.name)}", CALL,',
        'return "", CALL,',
    ),
    Mutation(
        "F19",
        TAIL,
        "        blocks.append(block)\n    return message(item.role",
        "        if type(block).__name__ == 'ToolCall':\n"
        "            block = msgspec.structs.replace(block, arguments=block.arguments[:characters])\n"
        "        blocks.append(block)\n    return message(item.role",
    ),
    Mutation(
        "F20",
        "proxy/dialects/chat/messages.py",
        "    if item.wire is not None:\n        return item.wire\n",
        "    if item.wire is not None and item.role != 'assistant':\n        return item.wire\n",
    ),
    Mutation(
        "F21",
        "proxy/dialects/chat/messages.py",
        "    if item.wire is not None:\n        return item.wire\n",
        "    item = msgspec.structs.replace(item, blocks=tuple(b for b in item.blocks if type(b) is not Reasoning))\n"
        "    if item.wire is not None and b'reasoning' not in item.wire:\n        return item.wire\n",
    ),
    Mutation(
        "F22",
        "proxy/dialects/chat/messages.py",
        "    if item.wire is not None:\n        return item.wire\n",
        "    if item.wire is not None and not item.calls:\n        return item.wire\n",
    ),
    Mutation(
        "F25",
        "proxy/dialects/chat/messages.py",
        "    if item.wire is not None:\n        return item.wire\n",
        "    if item.wire is not None and item.role != 'assistant':\n        return item.wire\n",
    ),
    Mutation(
        "F26",
        TAIL,
        "    return message(item.role, tuple(blocks), name=item.name)\n",
        "    return message(item.role, tuple(blocks), item.wire, name=item.name)\n",
    ),
)
