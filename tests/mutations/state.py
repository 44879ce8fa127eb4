"""Chapter 2.8 of docs/failure-modes.md: state, concurrency, streams and what clients do."""

from __future__ import annotations

from tests.mutations.listed import Mutation

COMMAND, COMPACTION, GATEWAY = "proxy/core/command.py", "proxy/core/compaction.py", "proxy/gateway.py"

MUTATIONS = (
    Mutation("F79", COMPACTION, "*range(cut, len(messages))]", "*range(cut, max(cut, compaction.messages + 4))]"),
    Mutation("F80", GATEWAY, "        return held\n", "        return True\n"),
    Mutation(
        "F81",
        COMPACTION,
        "own = [item for item in found if chain.holds(item.digest, item.messages)]",
        "own = list(found)",
    ),
    Mutation(
        "F82",
        "proxy/dialects/chat/request.py",
        "call.history if prompt.untouched else",
        "call.history if call.history else",
    ),
    Mutation(
        "F83",
        "proxy/store/sqlite.py",
        "values = (tenant, key, owner, now + seconds, now)",
        "values = (tenant, key, owner, now + seconds, 0)",
    ),
    Mutation(
        "F84",
        GATEWAY,
        "        gateway, target = self.gateway, self.destination.target\n        if self.playing.alone:\n",
        "        gateway, target = self.gateway, self.destination.target\n        if gateway is None:\n",
    ),
    Mutation(
        "F85",
        "proxy/playing.py",
        "            if self._working is not None and not self.alone:\n",
        "            if self._working is None and not self.alone:\n",
    ),
    Mutation("F86", "proxy/dialects/chat/summary.py", '"stream": b"true"}', '"stream": b"false"}'),
    Mutation("F87", "proxy/summarising.py", "self.deadline.reschedule(min(", "float(min("),
    Mutation(
        "F88",
        "proxy/server/stream.py",
        '"body": error_frame(error), "more_body": False',
        '"body": b"data: [DONE]\\n\\n", "more_body": False',
    ),
    Mutation(
        "F89",
        "proxy/server/stream.py",
        '                await self._remark(lock, "ping")\n',
        "                return\n",
    ),
    Mutation(
        "F90",
        "proxy/core/compaction.py",
        "own = [item for item in found if chain.holds(item.digest, item.messages)]",
        "own = list(found)",
    ),
    Mutation(
        "F91", "proxy/core/telling.py", "self.memory = msgspec.structs.replace(self.memory, conversation=None)", "pass"
    ),
    Mutation(
        "F92",
        "proxy/core/relay.py",
        "        if not self._rounds:\n            return event\n",
        "        if not self._rounds:\n"
        "            less = msgspec.structs.replace(event.usage, input=event.usage.input // 2)\n"
        "            return Counted(raw=None, usage=less)\n",
    ),
    Mutation("F93", "proxy/core/exchange.py", "asks_for_summary(branch.messages)", "not branch.messages"),
    Mutation(
        "F94",
        COMMAND,
        "match = _COMMAND.fullmatch(said.text)",
        "match = _COMMAND.search(said.text)",
        ("tests/core/test_command.py::test_the_same_words_elsewhere_are_prose",),
    ),
    Mutation(
        "F94",
        COMMAND,
        "said = spoken(text)",
        "said = msgspec.structs.replace(spoken(text), text=text)",
        ("tests/core/test_command.py::test_a_command_is_the_first_line_with_nothing_else_but_what_clients_add",),
    ),
    Mutation("F95", COMMAND, '        status="not_compacted",\n', '        status="compacted",\n'),
)
