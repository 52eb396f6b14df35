.DEFAULT_GOAL := help
.PHONY: tour demo check test verify stories bench matrix soak docs lock setup clean help
BIN := .venv/bin
LOCKED := .venv/.locked
READY := .venv/.ready
# minutes within which `make verify` must end; the aim is 45
VERIFY_MINUTES ?= 65

# One shell script, two findings: a Python that can make the environment, and a Java that can run Spark.
define FIND_PYTHON
found=; bare=; \
for python in $(PYTHON) python3 python3.11 python3.12 python3.13; do \
  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
  if $$python -c 'import venv, ensurepip' 2>/dev/null; then found=$$python; break; else bare=$$python; fi; \
done; \
if [ -z "$$found" ] && [ -n "$$bare" ]; then \
  echo "$$bare has no venv module: install it (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; \
elif [ -z "$$found" ]; then \
  echo "Python 3.11 or newer is needed: install it (Debian and Ubuntu: apt install python3 python3-venv)" >&2; exit 1; \
fi
endef
define CHECK_JAVA
java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
version=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
if [ "$${version:-0}" -lt 17 ]; then \
  echo "Java 17 or newer is needed ($$java is $${version:-missing}): install it (Debian and Ubuntu: apt install default-jre-headless)" >&2; \
  exit 1; \
fi
endef

tour: setup ## ten minutes, nine steps, each verified (AUTO=1: without a key for each)
	@$(BIN)/lakehouse tour $(if $(AUTO),--auto) || [ $$? -eq 3 ] # 3: somebody ended it before its last step

demo: setup ## start everything and show it at work (SECONDS=60 ends it after a minute)
	@$(BIN)/lakehouse demo $(if $(SECONDS),--seconds $(SECONDS))

check: setup ## before every save: style, types and the unit tests, within a minute
	@$(BIN)/ruff check && $(BIN)/ruff format --quiet --check lakehouse examples benchmarks/nexmark tests && \
	{ $(BIN)/mypy >.mypy_cache.log 2>&1 & types=$$!; $(BIN)/pytest tests/unit -q -n 1 --dist loadgroup --no-loadscope-reorder; status=$$?; \
	  wait $$types || status=1; cat .mypy_cache.log; rm -f .mypy_cache.log; exit $$status; }

test: setup ## the tests to run before every commit
	@$(BIN)/pytest -m "not slow" -n 3 --dist loadgroup --no-loadscope-reorder

verify: setup ## everything else: style, types, kills, a browser; fails above VERIFY_MINUTES; ALL=1: all three parts of what takes turns
	@started=$$(date +%s); status=0; turn=$(if $(ALL),,--turn=$$((started % 3))); export BOTH_WAYS=$(if $(ALL),0.03,0.01); $(BIN)/ruff check || status=1; \
	$(BIN)/pytest -m "slow and parallel" -n 3 --dist loadgroup --no-loadscope-reorder --interpreted --durations=20 $$turn || status=1; \
	$(BIN)/mypy & types=$$!; \
	$(BIN)/pytest -m "slow and not parallel" -n 2 --dist loadgroup --no-loadscope-reorder --durations=20 $$turn || status=1; \
	wait $$types || status=1; \
	seconds=$$(($$(date +%s) - started)); echo "make verify took $$seconds s of $$(($(VERIFY_MINUTES) * 60)) s"; \
	if [ $$seconds -gt $$(($(VERIFY_MINUTES) * 60)) ]; then status=1; \
	  echo "VERIFY_MINUTES=$(VERIFY_MINUTES): make verify must end within it; make the slowest tests above cheaper," \
	    "or give more minutes on a slower machine" >&2; \
	fi; exit $$status

stories: setup ## random stories, as many as you like: COUNT=500 RUNS=50 SEED=1 WORKERS=2 WRITE=docs/why/equivalence.md
	@PYTHONPATH=tests $(BIN)/python -m stories $(if $(COUNT),--count $(COUNT)) $(if $(RUNS),--runs $(RUNS)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(WORKERS),--workers $(WORKERS)) $(if $(WRITE),--write $(WRITE))

bench: setup ## measure what the README claims
	@$(BIN)/python -m benchmarks

matrix: setup ## operator by disturbance: write docs/why/equivalence.md again
	@$(BIN)/python -m benchmarks.matrix --write docs/why/equivalence.md

soak: setup ## an hour of the real job: memory, logs and batch durations must not grow (SECONDS=28800 for a night)
	@$(BIN)/python -m benchmarks.soak $(if $(SECONDS),--seconds $(SECONDS))

docs: setup ## build the pages into site/, with search; fails on a broken link or anchor, and on a page that the menu lacks
	@$(BIN)/zensical build --clean --strict && $(BIN)/pytest -q tests/unit/test_menu.py
	@echo "site/index.html opens in a browser; its search works on a server: $(BIN)/zensical serve"

lock: $(BIN)/uv ## bring requirements.lock up to date with pyproject.toml
	@$(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --extra dev --extra all --generate-hashes \
	  --no-strip-extras --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
	  --output-file requirements.lock

setup: $(READY) ## make .venv and fetch the jars, once
	@$(CHECK_JAVA)
	@$(BIN)/python -m lakehouse.runtime.jars
	@$(BIN)/python -m tools.java_classes
	@$(BIN)/python -m tools.record_classes
	@$(BIN)/python -m compileall -q lakehouse streaming_jobs batch_jobs assets examples tests

$(READY): $(LOCKED) pyproject.toml lakehouse/__init__.py
	@$(BIN)/pip install --quiet --no-index --no-deps --no-build-isolation --editable .
	@touch $@

$(LOCKED): requirements.lock
	@$(CHECK_JAVA)
	@$(FIND_PYTHON); echo "making .venv from requirements.lock (once, a minute or two)" && $$found -m venv --clear .venv
	@awk '/^uv==/ {ours = 1} ours {print} ours && !/\\$$/ {exit}' requirements.lock >.venv/uv.lock
	@$(BIN)/pip install --quiet --require-hashes --requirement .venv/uv.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --requirement requirements.lock || \
	  { echo "uv, which does not read pip's configuration, failed; pip takes its turn" >&2; \
	    $(BIN)/pip install --quiet --require-hashes --requirement requirements.lock; }
	@touch $@

$(BIN)/uv: # not a prerequisite of a file: the lock must not wait for what it is about to replace
	@$(MAKE) --no-print-directory setup

clean: ## remove .venv and caches; the data in .lakehouse stay
	rm -rf .venv .pytest_cache .hypothesis .ruff_cache .mypy_cache .cache dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
