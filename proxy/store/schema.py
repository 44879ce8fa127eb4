"""The tables, once, for every database.

What belongs here: columns, keys and the indices of what is asked. What never: a statement, a connection, SQLite's or
PostgreSQL's own types. The tenant stands in every primary key (but for those of tables that describe upstreams and the
installation); digests are bytes, payloads msgspec JSON bytes, money whole nano-dollars, times unix
seconds. `last_used` carries retention: a row goes when neither it nor its conversation was used since.

A change here needs a migration beside it; `tests/store/test_migrations.py` compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)

metadata = MetaData()

conversation = Table(
    "conversation",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("scope", LargeBinary, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("label", Text),
    Column("created_at", Double, nullable=False),
    Column("last_used", Double, nullable=False),
    Index("conversation_label", "tenant", "scope", "label", "created_at", "id"),
    Index("conversation_last_used", "tenant", "last_used"),
)
"""The first conversation of a label is the label's; later ones of that label are kept and not found by it."""

reply = Table(
    "reply",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("scope", LargeBinary, primary_key=True),
    Column("digest", LargeBinary, primary_key=True),
    Column("conversation", Text, nullable=False),
    Column("anchor", LargeBinary),
    Column("last_used", Double, nullable=False),
    Index("reply_last_used", "tenant", "last_used"),
)
"""Shown prefixes that end with an answer of ours, and the requests that were answered."""

compaction = Table(
    "compaction",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("scope", LargeBinary, primary_key=True),
    Column("digest", LargeBinary, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("conversation", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("last_used", Double, nullable=False),
    Index("compaction_last_used", "tenant", "last_used"),
)

hidden = Table(
    "hidden",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("scope", LargeBinary, primary_key=True),
    Column("digest", LargeBinary, primary_key=True),
    Column("agent", Text, primary_key=True),
    Column("id", LargeBinary, primary_key=True),
    Column("reply", LargeBinary),
    Column("label", Text),
    Column("conversation", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("last_used", Double, nullable=False),
    Index("hidden_reply", "tenant", "scope", "reply"),
    Index("hidden_last_used", "tenant", "last_used"),
)
"""`id` is the hash of reply, label and payload: two answers to one shown prefix are two rows."""

result = Table(
    "result",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("scope", LargeBinary, primary_key=True),
    Column("reference", Text, primary_key=True),
    Column("conversation", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("last_used", Double, nullable=False),
    Index("result_last_used", "tenant", "last_used"),
)
"""`payload` is the text in UTF-8, lone surrogates included: what was cut comes back as it was."""

trace = Table(
    "trace",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("scope", LargeBinary, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("digest", LargeBinary, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("last_used", Double, nullable=False),
    Index("trace_last_used", "tenant", "last_used"),
)
"""Which skills a turn had, nothing that was said: `subject` is the skill's id, `digest` the shown prefix that asked for
it, `last_used` when that was."""

owned = Table(
    "owned",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("end_user", Text),
    Column("metadata", LargeBinary, nullable=False),
    Column("head", Text),
    Column("version", BigInteger, nullable=False),
    Column("run", Text),
    Column("run_until", Double),
    Column("stopping", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("last_used", Double, nullable=False),
    Index("owned_created_at", "tenant", "key", "created_at", "id"),
    Index("owned_last_used", "tenant", "last_used"),
)
"""Conversations that we keep. `run_until` is when the running turn's owner counts as gone, `stopping` that its user
wants it stopped."""

owned_item = Table(
    "owned_item",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("parent", Text),
    Column("wire", LargeBinary, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)
"""Their messages, each under the one before it; `payload` is what is known of one besides its bytes."""

interjection = Table(
    "interjection",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("run", Text, primary_key=True),
    Column("place", BigInteger, primary_key=True),
    Column("wire", LargeBinary, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)
"""What was left for a running turn, in order of `place`."""

calibration = Table(
    "calibration",
    metadata,
    Column("upstream", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("payload", LargeBinary, nullable=False),
)

lease = Table(
    "lease",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("instance", Text),
)

client_key = Table(
    "client_key",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
    Column("models", LargeBinary, nullable=False),
    Index("client_key_digest", "digest", unique=True),
)

standing = Table(
    "standing",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("quota", LargeBinary, nullable=False),
    Column("last_used", Double),
)
"""What an operator set for a key while the server ran, whether the configuration or the database holds it, and when it
was last used; ("") for all keys of the tenant. It is no key's row: one that is configured has none."""

account = Table(
    "account",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("end_user", Text, primary_key=True),
    Column("payload", LargeBinary, nullable=False),
    Column("updated_at", Double, nullable=False),
)
"""Settings of an end user, or ("") of the key itself. They are nobody's conversation: retention leaves them alone."""

usage = Table(
    "usage",
    metadata,
    Column("id", Text, primary_key=True),
    Column("request", Text, nullable=False),
    Column("parent", Text),
    Column("purpose", Text, nullable=False),
    Column("tenant", Text, primary_key=True),
    Column("key", Text, nullable=False),
    Column("end_user", Text),
    Column("conversation", Text),
    Column("component", Text, nullable=False),
    Column("upstream", Text, nullable=False),
    Column("asked_model", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("status", Text, nullable=False),
    Column("http_status", Integer),
    Column("error", Text),
    Column("finish", Text),
    Column("opened_at", Double, nullable=False),
    Column("first_token", Double),
    Column("duration", Double),
    Column("input", BigInteger, nullable=False),
    Column("output", BigInteger, nullable=False),
    Column("cached", BigInteger, nullable=False),
    Column("cache_write", BigInteger, nullable=False),
    Column("reasoning", BigInteger, nullable=False),
    Column("estimated", Boolean, nullable=False),
    Column("cost", BigInteger),
    Column("price_source", Text),
    Column("price_version", Text),
    Column("unpriced", Boolean, nullable=False),
    Column("projected", BigInteger),
    Column("window", BigInteger),
    Column("compaction", Text, nullable=False),
    Column("compaction_id", Text),
    Column("notes_by", Text),
    Column("paused", Text),
    Column("repaired", Integer, nullable=False),
    Column("policy", Text, nullable=False),
    Column("policy_hash", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("day", Integer, nullable=False),
    Column("instance", Text),
    Index("usage_opened_at", "opened_at"),
    Index("usage_tenant_opened_at", "tenant", "opened_at"),
    Index(
        "usage_open",
        "opened_at",
        sqlite_where=text("status = 'open'"),
        postgresql_where=text("status = 'open'"),
    ),
)
"""The columns of `UsageRow` in its order; `day`: whole days since 1970-01-01 UTC, by which reports group; `instance`:
whose call an open row is. On PostgreSQL the table is kept by month of `opened_at`, which belongs to its key there."""

instance = Table(
    "instance",
    metadata,
    Column("id", Text, primary_key=True),
    Column("seen_at", Double, nullable=False),
)
"""The processes on this database and when each was last seen alive, by the database's clock. Empty on SQLite, which
serves one: what a lease or an open row names as its `instance` is empty there too."""

revision = Table(
    "revision",
    metadata,
    Column("name", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
)
"""How often something was changed ("keys"), for the processes that keep a copy of it."""

secret = Table(
    "secret",
    metadata,
    Column("purpose", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)
