# `make image` builds and gates the default pin; `make test` passes all tests. Both do
# their own set-up. PIN=name picks another pin; ARGS adds options, ARGS=--again.
PIN ?=
ARGS ?=

.PHONY: image plan build gate test check bench clean
.DEFAULT_GOAL := image

# kiln's exit code (0 passed, 1 a gate failed, 4 could not run here) is in make's
# message and is the exit code of scripts/image; make's own status is 2 for any failure.
image: .venv/.ready
	@scripts/image $(PIN) $(ARGS)

plan build gate: .venv/.ready
	@.venv/bin/kiln $@ $(PIN) $(ARGS)

test: .venv/.ready-dev
	@scripts/test $(ARGS)

# What CI checks before the tests: style, types, import direction.
check: .venv/.ready-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache

bench: .venv/.ready-dev
	.venv/bin/python -m tests.bench $(ARGS)

.venv/.ready: requirements.txt pyproject.toml scripts/setup
	@scripts/setup

.venv/.ready-dev: .venv/.ready requirements-dev.txt
	@scripts/setup --dev

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
