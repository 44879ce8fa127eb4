# The commands of the house. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install clients postgres charts boards test test-postgres slow mutations cover check format demo bench lock clean

BIN := .venv/bin
ARGS ?=
PEERS ?=
AGAINST ?=

help: ## what there is to run
	@printf 'Weirgate\n\n'
	@bold= plain=; [ -t 1 ] && [ -z "$${NO_COLOR:-}" ] && { bold=$$'\e[1m'; plain=$$'\e[0m'; }; \
	awk -F ':.*## ' -v b="$$bold" -v p="$$plain" \
	    '/^[a-z-]+:.*## / { printf "  %smake %-14s%s %s\n", b, $$1, p, $$2 }' $(firstword $(MAKEFILE_LIST))
	@printf '\nARGS is passed on:  make test ARGS="tests/core -x"\n'

install: ## .venv with everything locked and hashed (again: under a second)
	@scripts/install.sh

clients: install ## the real clients that tests drive: LangChain, llm, openai for Node, the Vercel AI SDK
	@scripts/clients.sh

postgres: ## the servers that tests run: Debian's PostgreSQL, PgBouncer and nginx, where they are missing
	@scripts/postgres.sh

charts: install ## what judges charts/, Dockerfile and compose.yaml: Helm 3 and 4, schemas, linters
	@scripts/helm.sh

boards: install ## what judges grafana/: prometheus, promtool, the types of Grafana's dashboards
	@scripts/boards.sh

test: clients postgres charts boards ## all tests
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

test-postgres: install postgres ## the tests of the whole application again, on PostgreSQL instead of SQLite
	@WEIRGATE_TEST_STORE=postgresql $(BIN)/python -m pytest -n 2 --dist loadfile tests/scenarios tests/gateway tests/server $(ARGS)

slow: install postgres ## the long versions of scenarios and durability: every recorded conversation, longer churn
	@$(BIN)/python -m pytest tests/scenarios tests/durability -m slow $(ARGS)

mutations: install ## break each behaviour of docs/failure-modes.md and see its test fail (ARGS="F12 F40" for some)
	@$(BIN)/python -m tests.mutations.run $(ARGS)

cover: clients postgres charts boards ## all tests with branch coverage; the core must be covered whole
	@$(BIN)/python -m pytest --cov --cov-report=term $(ARGS)
	@$(BIN)/coverage report --include='proxy/core/*' --fail-under=100

check: install ## format, lint, types, imports, the law of the house: all of them, whatever fails first
	@status=0; \
	for tool in "ruff format --check ." "ruff check ." mypy "lint-imports --no-logo" \
	    "python -m pytest -q tests/test_house.py tests/test_readme.py -m 'not tool'"; do \
	    printf '== %s\n' "$$tool"; \
	    eval "$(BIN)/$$tool" || { status=1; failed="$${failed:-} $${tool%% *}"; }; \
	done; \
	[ $$status = 0 ] || printf 'check: failed:%s\n' "$$failed" >&2; \
	exit $$status

format: install ## format the code and apply the fixes that are safe
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

pictures: boards ## what the dashboards show of a rehearsal, drawn into docs/observability (three minutes)
	@scripts/pictures.sh

demo: install ## a real local model, forty turns, directly and through the gateway
	@$(BIN)/python demo/run.py $(ARGS)

bench: install ## direct, nginx, a bare pass-through and the gateway, side by side (PEERS=1: other gateways; AGAINST=commit)
	@$(BIN)/python benchmarks/run.py $(if $(PEERS),--peers) $(if $(AGAINST),--against $(AGAINST)) $(ARGS)

lock: install ## write the locks anew (ARGS=--upgrade for newer versions)
	@scripts/lock.sh $(ARGS)

clean: ## caches and reports; .venv stays
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.* htmlcov dist build
	@find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 -r rm -rf
