"""What the core asks of the world while it serves one call, and what it is told.

`exchange` yields a step and is sent its answer; an error is thrown in at the place that asked. The union `Step` is
closed: the driver answers each kind in one arm of a `match`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from proxy.core.command import Result
from proxy.core.conversation import Approval, Clarification, Message, ToolCall
from proxy.core.effort import Effort
from proxy.core.guards import Guard
from proxy.core.notes import Compaction, Scan
from proxy.core.past import Past
from proxy.core.policy import Mode, ModelCard, Policy
from proxy.core.recollection import Recollection
from proxy.core.stack import UNCHANGED, Catalogue, Members, Stack, Trace
from proxy.core.usage import Purpose, Usage

T = TypeVar("T")


class Caller(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who asks. `key` is the key's id, never the key. `end_user` is the one the request names, if any."""

    tenant: str
    key: str
    end_user: str | None = None


class Call(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One client request, decoded.

    `fields` holds every other top-level member as raw JSON in the client's order (unknown ones survive); `tools` is
    the raw JSON of the tool definitions, b"" without. `max_output` is the requested completion limit in tokens and
    `output_field` the member that stated it. `body` is the request exactly as it came, `history` the part of it that
    is the array of messages. `known` is what an earlier call left known of the first messages. `channel` says that the
    conversation is one of a chat channel, where many people write; `language` is the header in which a client states
    the user's.
    """

    caller: Caller
    model: str
    messages: tuple[Message, ...]
    fields: Mapping[str, bytes]
    body: bytes
    history: bytes | memoryview = b"[]"
    known: Past | None = None
    tools: bytes = b""
    tools_tokens: int = 0
    tools_digest: bytes = b""
    stream: bool = False
    include_usage: bool = False
    max_output: int | None = None
    output_field: str = "max_tokens"
    choices: int = 1
    label: str | None = None
    channel: bool = False
    language: str = ""
    mode: Mode | None = None
    store: bool = True
    owned: str | None = None
    """The conversation that the gateway keeps, of which this is a turn."""


class Ratio(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How many tokens the provider reports for one that we count; `samples` is 0 where nothing was learned."""

    value: float = 1.0
    samples: int = 0


class Limits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The window as this call knows it. `total` bounds prompt and output together, `input` the prompt alone. `asked`:
    somebody wants to know what would be done in it (`explaining`)."""

    total: int | None = None
    input: int | None = None
    source: Literal["policy", "learned", "catalogue", "asked", "unknown"] = "unknown"


class Summariser(msgspec.Struct, frozen=True, kw_only=True):
    """A model that may be asked for a narrative: its name, its window in tokens (None: unknown), and the tokens it
    counts for one of our estimate. `own` is the conversation's own model."""

    name: str
    window: int | None
    scale: float = 1.0
    own: bool = False


def _nothing(reference: str) -> bool:
    """Of no reference is anything known."""
    return False


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that the core may know of the world in this call; frozen when the call begins.

    `scope` is the keyed digest that every identity of this caller starts from, `start` the first of them, before all
    messages (`chain.begin`). `agent` is the name that hidden state is kept under. `fresh` is the id a new conversation
    gets. `scan` reads a message for the ledger, `noted` writes the notes of a compaction; the driver gives both with
    memory. `summarisers` tells who is asked for a narrative, and in which order; `redact` takes secrets out of what is
    stored, or shown to one of them. `stack` is what the operator adds to this call; None: nothing. `recollection` keeps
    how closed turns were told; `holds` says of a reference whether its text is known to be stored; `now` is when the
    call began (unix seconds), told where a stack needs it.
    """

    policy: Policy
    card: ModelCard
    limits: Limits
    ratio: Ratio
    exact_ratio: Ratio
    upstream: str
    agent: str
    scope: bytes
    start: bytes
    fresh: str
    mode: Mode = Mode.ENFORCE
    scan: Scan | None = None
    noted: Callable[[Compaction], Message] | None = None
    summarisers: Callable[[], tuple[Summariser, ...]] = tuple
    redact: Callable[[str], str] = str
    stack: Stack | None = None
    recollection: Recollection | None = None
    holds: Callable[[str], bool] = _nothing
    now: float = 0.0

    @property
    def model(self) -> str:
        """The name that the upstream knows."""
        return self.card.name


class Anchor(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The reported size of the last call on this branch.

    It holds for a prompt with the same `shape` (digest of system messages, tools and the compaction in use) on the
    same upstream and model: `reported` prompt tokens for what we estimated as `estimated`. `request` is the chain
    digest of the request it was measured on: for that very request the same decision is taken again. `guard` is what
    compaction has come to on this branch; None: nothing worth keeping. `measured`: `reported` is the provider's number;
    else it is our own projection, which says nothing of how much the provider reads.
    """

    upstream: str
    model: str
    shape: bytes
    reported: int
    estimated: int
    compaction: str | None = None
    request: bytes = b""
    guard: Guard | None = None
    measured: bool = True


class Hidden(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Told-only messages that belong behind the shown digest `digest`; `payload` is msgspec JSON of them."""

    digest: bytes
    label: str | None
    payload: bytes


class Memory(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the store knows of this history.

    `compactions` cover prefixes of it, shortest first; of many, those that reach furthest. `anchor` belongs to the
    longest known prefix. `hidden` holds told-only state of this agent, where the caller stated a label or an end
    user.
    """

    conversation: str | None = None
    compactions: tuple[Compaction, ...] = ()
    anchor: Anchor | None = None
    hidden: tuple[Hidden, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the client and the usage row are told of a prompt: its projected size and what was done to it."""

    conversation: str
    tokens: int
    window: int | None
    compaction: Literal["none", "auto", "recovered", "manual"] = "none"
    compaction_id: str | None = None
    writer: str | None = None
    """Who wrote the notes in it: builtin, or a model's name."""
    stopped: str = ""
    """Why less than usual is done to compact this branch (`guards.stopped`)."""
    repaired: int = 0
    output: int | None = None
    """The output limit we set in place of the client's, where it had to be lowered."""
    unread: int = 0
    """How many tokens shorter notes make it than the history that they stand for."""
    trimmed: int = 0
    """How many tokens shorter the memory of closed turns makes it."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is sent upstream, measured. `untouched` means: exactly the client's messages, byte for byte; `verbatim`, in
    the modes that only watch: the whole body too, but for a model's alias. `members` are set beside the messages;
    calls of the tools `own` are ours to answer."""

    messages: tuple[Message, ...]
    untouched: bool
    verbatim: bool = False
    max_output: int | None
    estimated: int
    shape: bytes
    report: Report
    members: Members = UNCHANGED
    own: frozenset[str] = frozenset()


class Reply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A complete answer. `message` is None where the reply had several choices or none; its size is taken only where it
    is told again (`chain.measured`)."""

    message: Message | None
    finish: str | None
    usage: Usage | None


class Stored(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A whole tool result or request that was cut in a prompt; `reference` is derived from its content."""

    reference: str
    text: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a call ended, for metrics and logs; `past` is the history that it was recognised as, for the next call.
    `said` is the gateway's own answer, where the call was a command. `reply` is what the client sees; `joined` where
    our tools were called, of all `rounds` together, whose prompts took `read` tokens. `pause`: the turn waits for what
    the user says to this; its text is the end of the reply's. `effort` is the level that held."""

    report: Report
    reply: Reply | None
    recoveries: int = 0
    rounds: int = 1
    read: int = 0
    joined: bool = False
    past: Past | None = None
    said: Result | None = None
    pause: Clarification | Approval | None = None
    effort: Effort | None = None


class _Asks(msgspec.Struct, Generic[T], frozen=True, kw_only=True, gc=False):
    def __iter__(self) -> Generator[Step, Any, T]:
        answer: T = yield self  # type: ignore[misc]  # every subclass is a Step; a cast would cost a call for each
        return answer


class Recall(_Asks[Memory], frozen=True, kw_only=True, gc=False):
    """Read the store. `digests` are the chain's message boundaries, newest first."""

    scope: bytes
    agent: str
    label: str | None
    named: bool
    digests: tuple[bytes, ...]


class Count(_Asks[tuple[int, ...]], frozen=True, kw_only=True, gc=False):
    """Count tokens exactly, in the pool. Answered with one number per message (an estimate where counting failed)."""

    messages: tuple[Message, ...]
    encoding: str


class Claim(_Asks[bool], frozen=True, kw_only=True, gc=False):
    """Take the lease on compacting this branch. True: nobody else can have had it since the last recall. False:
    somebody may have had it, and is done; recall again.

    `cause` is what set the compaction off: a prompt over the trigger, an overflow, the user's command, or memory."""

    key: bytes
    cause: Literal["auto", "recovered", "manual", "memory"] = "auto"


class Send(_Asks[Reply], frozen=True, kw_only=True, gc=False):
    """Ask the model; the driver streams to the client meanwhile.

    May throw TooLong or another UpstreamError (nothing has reached the client then), or ClientLeft.
    `delay` seconds pass before the call is made.
    """

    prompt: Prompt
    purpose: Purpose = "chat"
    delay: float = 0.0


class Verdict(Protocol):
    """What became of a summary model's answer: why it was not taken, "" where it was."""

    @property
    def refused(self) -> str: ...


V = TypeVar("V", bound=Verdict)


class Summarise(_Asks[V], Generic[V], frozen=True, kw_only=True, gc=False):
    """Ask a summary model; nothing is shown to the client.

    Answered with what `judge` says of the reply, with which the call's row is closed. May throw an UpstreamError.
    `projected` is the request's size in the model's tokens; `report` is of the call that is served.
    """

    summariser: Summariser
    messages: tuple[Message, ...]
    max_tokens: int
    projected: int
    report: Report
    judge: Callable[[Reply], V]


class Ran(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one call of an own tool gave back: the text for the model, and the id of a skill that it loaded; or the
    question to the user that the turn waits for."""

    text: str = ""
    skill: str | None = None
    pause: Clarification | Approval | None = None


class RunTools(_Asks[tuple[Ran, ...]], frozen=True, kw_only=True, gc=False):
    """Run the gateway's own tools; answered with one result per call. `catalogue` is what this conversation may load,
    `loaded` are the ids of the skills that the turn has already. At most one may be a question to the user, and none
    unless they are `alone`: else the client runs calls of its own first."""

    calls: tuple[ToolCall, ...]
    catalogue: Catalogue = ()
    loaded: frozenset[str] = frozenset()
    alone: bool = True


class Interjected(_Asks[tuple[Message, ...]], frozen=True, kw_only=True, gc=False):
    """What the user of a conversation that the gateway keeps said since the turn began, or since this was asked
    last."""


class Remember(_Asks[None], frozen=True, kw_only=True, gc=False):
    """Store what this call taught us. Awaited before the last byte of the answer leaves.

    `reply` is the chain digest of request and answer (None where the answer has no identity); `learned` is a window
    that an overflow stated, `sample` what the provider reported for what we estimated and (0: not counted) counted.
    """

    scope: bytes
    agent: str
    conversation: str
    label: str | None = None
    root: bytes = b""
    request: bytes | None = None
    reply: bytes | None = None
    anchor: Anchor | None = None
    compaction: Compaction | None = None
    hidden: Hidden | None = None
    results: tuple[Stored, ...] = ()
    traces: tuple[Trace, ...] = ()
    learned: Limits | None = None
    sample: tuple[int, int, int] | None = None


Step = Recall | Count | Claim | Send | Summarise[Any] | RunTools | Interjected | Remember

Flow = Generator[Step, Any, T]
