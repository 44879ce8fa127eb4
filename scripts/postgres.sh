#!/usr/bin/env bash
# Sees that PostgreSQL, PgBouncer and nginx are there for the tests, which run servers of their own and touch no other:
# Debian's packages, where they are missing and this is root. Elsewhere they are left out, and said; the tests that need
# them are skipped aloud, and in CI that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/parts.sh

server() { compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || command -v pg_config >/dev/null; }
pooler() { PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v pgbouncer >/dev/null; }
balancer() { PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v nginx >/dev/null; }

server && pooler && balancer && exit 0
alone
server && pooler && balancer || debian postgresql pgbouncer nginx-light
server || say "no PostgreSQL here: its tests are left out (Debian: apt-get install postgresql)"
pooler || say "no PgBouncer here: its tests are left out (Debian: apt-get install pgbouncer)"
balancer || say "no nginx here: the tests of several replicas are left out (Debian: apt-get install nginx-light)"
