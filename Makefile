# Each target does all its own set-up. `make run` needs Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(PYTHON) dashboard/local/install.py
PYTEST := $(BIN)/python -m pytest
# As many as there are cores. A file stays in one process, for what its tests share, and
# files in the order of tests/conftest.py, in which browser tests are last. A process that
# crashes ends the tests: pytest-xdist would start another, deal it files that are done,
# and wait for ever.
DEALT := --maxprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
IN_PARALLEL := -n logical $(DEALT)
# One more where much is waited for.
WAITING = -n $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)") $(DEALT)
BENCH := .cohort/bench
STEP := $(BIN)/python -m tests.bench.bench_step
SAMPLING := $(BIN)/python -m tests.bench.bench_generation
STARTER := --model trainer/starter/countdown/model
# Of Cohort, as of TRL: as many tokens at once as are quick there, and no more.
STARTER_STEP := $(STARTER) --micro-batch-tokens 4096
SMOLLM2_STEP := --model $(BENCH)/smollm2/model --micro-batch-tokens 1024 --new 32
# What a GPU's Python may lack, as wheels for a machine without a network.
WHEELS := .cohort/wheels
GPU_WHEELS := pydantic pydantic-core annotated-types typing-inspection google-re2 \
	math-verify latex2sympy2-extended antlr4-python3-runtime py3langid jsonschema \
	jsonschema-specifications referencing rpds-py transformers tokenizers \
	trl datasets dill multiprocess
PLATFORMS := 2_28 2_27 2_17 2_5 2014 1
# What the engine needs beside torch and transformers, where a GPU's Python lacks it.
ENGINE_NEEDS := "pydantic>=2.12,<3" "google-re2>=1.1"
GPU_PYTHON := PYTHONPATH="$(BENCH)/packages$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON)
# What a user of the client has in a notebook.
NOTEBOOK := .venv-notebook
JS_TESTS = $(wildcard tests/js/*.js)
# vLLM's build for machines without a GPU is there for Linux only.
ON_LINUX := $(filter Linux,$(shell uname))
# Where Python may keep no bytecode, pytest would compile all tests anew each time.
unexport PYTHONDONTWRITEBYTECODE
# A machine without Node.js gets one inside the virtual environment.
export PATH := $(CURDIR)/$(BIN):$(PATH)
UV_COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-annotate --no-emit-package torch --custom-compile-command "make lock"

# vLLM asks for older ones than it works with, and than requirements.lock has. Its pin of
# numba forbids numpy 2.5, which that has from Python 3.12 on.
GPU_OVERRIDES := numpy setuptools transformers \
	"numba==0.65.0 ; python_full_version < '3.12'" \
	"numba==0.68.1 ; python_full_version >= '3.12'"

.DEFAULT_GOAL := help
.PHONY: help setup environments setup-tests run link docs architectures check check-types check-rules test test-costly test-costs test-smoke test-slow test-minutes test-vllm seeded soak bench bench-step bench-gpu check-gpu gpu-wheels demo screenshots starter-llm lock format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install everything that `make run` needs
	@$(INSTALL)

run: setup ## Start Cohort on this machine and print a link
	@exec $(BIN)/python manage.py up

link: ## Print another link that signs you in; ARGS="--user NAME" for someone else
	@$(BIN)/python manage.py sign_in_link $(ARGS)

starter-llm: setup ## Add SmolLM2-135M-Instruct, a small real language model
	@$(INSTALL) --language-model
	@$(BIN)/python -m trainer starter-llm --out "$${COHORT_DATA:-.cohort}/starter/smollm2"

environments: setup ## Add the library verifiers and PACKAGES="…" with tasksets, beside our own packages
	@$(INSTALL) --environments "$(PACKAGES)"

setup-tests:
	@$(INSTALL) --tests

check: setup-tests ## Format, lint, types, import rules, templates, scripts, images, migrations, help tables, words, ceilings
	@$(MAKE) --jobs=2 check-types check-rules

check-types:
	$(BIN)/mypy

check-rules:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	git ls-files -z 'templates/*.html' | xargs -0 -r $(BIN)/djade --target-version 5.2 --check
	node_modules/.bin/biome check
	$(BIN)/hadolint docker/*.Dockerfile
	node_modules/.bin/dclint --config docker/dclint.json --max-warnings 0 docker
	$(BIN)/python -W "ignore:Got an error checking" manage.py makemigrations --check --dry-run
	$(BIN)/python manage.py check --deploy --fail-level WARNING
	$(BIN)/python manage.py help_tables --check
	$(BIN)/python -m tests.words
	$(BIN)/python -m tests.ceilings
	$(BIN)/python -m tests.costs

docs: setup-tests ## Write the tables of the help pages from the code
	$(BIN)/python manage.py help_tables

architectures: setup-tests ## Measure each architecture and write its help page
	$(BIN)/python -m tests.trainer.architectures --write

format: setup-tests ## Put the code into the form that `make check` expects
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	git ls-files -z 'templates/*.html' | xargs -0 -r $(BIN)/djade --target-version 5.2
	node_modules/.bin/biome check --write

test: ## Run the tests, browser tests included, but for those of tests/costly.txt
	@$(INSTALL) --tests --browser
	$(if $(JS_TESTS),node --test $(JS_TESTS))
	$(PYTEST) $(IN_PARALLEL) $(or $(ARGS),--only quick)

test-costly: ## Run the tests that are too costly for `make test`
	@$(INSTALL) --tests --browser
	$(PYTEST) $(IN_PARALLEL) --only costly $(ARGS)

# On a machine with nothing else to do.
test-costs:
	@$(INSTALL) --tests --browser
	$(PYTEST) $(IN_PARALLEL) --write-costs

# One test for each guarantee of the slow suites; their list is a file of arguments.
test-smoke:
	@$(INSTALL) --tests --browser
	$(PYTEST) -m "slow or faults" $(WAITING) @tests/smoke.txt $(ARGS)

test-slow: ## Run what takes minutes: faults, full starts, learning, vLLM
	@$(MAKE) test-minutes
	@$(MAKE) test-vllm

test-minutes:
	@$(INSTALL) --tests --browser --environments ""
	@test -x $(NOTEBOOK)/bin/python || $(BIN)/uv venv --quiet $(NOTEBOOK)
	@$(BIN)/uv pip install --quiet --python $(NOTEBOOK) -r tests/client/api/requirements-notebook.txt
	$(PYTEST) -m "slow or faults" $(WAITING) $(ARGS)

test-vllm:
	@$(INSTALL) --tests $(if $(ON_LINUX),--vllm)
	$(if $(ON_LINUX),.venv-vllm/bin/python -m pytest -m vllm tests/trainer tests/dashboard/analysis $(ARGS))

seeded: ## Put faults of one line into a copy, and see that the tests find each
	@$(INSTALL) --tests --browser
	$(BIN)/python -m tests.seeded.run $(ARGS)

soak: ## Run for hours: each fault ten times, any course of events, any input, ingest, streaming, pages, a large file, 50 million completions
	@$(INSTALL) --tests --browser
	$(PYTEST) -m faults --soak $(ARGS)
	$(PYTEST) -m slow --soak tests/dashboard/supervision/machine tests/inputs tests/bench \
		tests/trainer/starter tests/trainer/run/test_exact_resume.py $(ARGS)
	@$(MAKE) seeded
	$(BIN)/python tests/bench/bench_ingest.py 300
	$(PYTEST) -m load -q -s tests/load/bench_soak.py
	$(PYTEST) -m load -q -s tests/load/bench_http.py
	$(PYTEST) -m load -q -s tests/load/bench_upload.py
	$(BIN)/python -m tests.load.bench_storage $(BENCH)/storage

bench: setup-tests ## Measure all that a machine without a GPU can, as tables
	$(BIN)/python tests/bench/bench_ingest.py 10
	$(BIN)/python -m tests.bench.bench_many_runs
	$(BIN)/python tests/bench/bench_import.py 1000
	$(PYTEST) -m load -q -s tests/bench/bench_curves.py tests/bench/bench_compare.py
	$(PYTEST) -m load -q -s tests/bench/bench_charts.py tests/bench/bench_run_table.py
	$(PYTEST) -m load -q -s tests/bench/bench_streaming.py
	$(PYTEST) -m load -q -s tests/load/bench_crowd.py
	$(PYTEST) -m load -q -s tests/load/bench_http.py
	$(PYTEST) -m load -q -s tests/load/bench_upload.py
	$(BIN)/python -m tests.bench.bench_rules
	$(BIN)/python -m tests.bench.bench_sandbox
	@$(MAKE) bench-step
	$(PYTEST) -m load -q -s tests/load/bench_step_time.py

bench-step: setup-tests ## Measure steps, memory and sampling beside TRL's
	@$(INSTALL) --language-model
	test -d $(BENCH)/smollm2/model || $(BIN)/python -m trainer starter-llm --out $(BENCH)/smollm2
	$(STEP) $(STARTER_STEP) --prompts 16 --group 8
	$(STEP) $(STARTER_STEP) --prompts 32 --group 16
	$(SAMPLING) $(STARTER) --prompts 16 --group 8
	$(SAMPLING) $(STARTER) --prompts 32 --group 16
	$(BIN)/python -m tests.bench.bench_turns $(STARTER) --prompts 16 --group 8
	$(BIN)/python -m tests.bench.bench_turns --model $(BENCH)/smollm2/model
	$(STEP) $(SMOLLM2_STEP) --prompts 8 --group 8

# Nothing is installed but small packages into $(BENCH)/packages; without a network, let
# pip find their wheels: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER make bench-gpu
bench-gpu: ## Measure steps and sampling on a GPU, by $(PYTHON) with torch and transformers
	@$(GPU_PYTHON) -c "import pydantic, re2" 2>/dev/null || \
		$(PYTHON) -m pip install --quiet --target $(BENCH)/packages $(ENGINE_NEEDS)
	@$(GPU_PYTHON) -m tests.bench.bench_gpu $(ARGS)

# Where there is no .venv, $(PYTHON) needs torch and transformers; the rest comes from
# PyPI, or without a network from wheels: PIP_FIND_LINKS=.cohort/wheels make check-gpu
check-gpu: ## Try out, in twelve minutes, all that Cohort does on a GPU
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m tests.gpu.check $(ARGS)

gpu-wheels: ## Fetch the wheels that check-gpu needs, into .cohort/wheels
	@mkdir -p $(WHEELS)
	@sed -n 's/ \\$$//; /^[a-z]/p' requirements.lock requirements-dev.lock > $(WHEELS)/pins.txt
	@for version in 3.12 3.13; do $(PYTHON) -m pip download --quiet --no-deps \
		--only-binary=:all: --implementation cp --python-version $$version \
		$(foreach p,$(PLATFORMS),--platform manylinux$(if $(findstring _,$p),_)$p_x86_64) \
		--constraint $(WHEELS)/pins.txt --dest $(WHEELS) $(GPU_WHEELS) || exit; done
	@du -sh $(WHEELS)

demo: setup ## Start with fresh throw-away data
	@COHORT_DATA="$$(mktemp -d)" $(BIN)/python manage.py up

screenshots: ## Take the pictures of the README
	@$(INSTALL) --tests --browser
	$(BIN)/python -m tests.browser.screenshots $(ARGS)

lock: setup-tests ## Choose newer versions within pyproject.toml's bounds
	$(UV_COMPILE) --extra web --extra local --extra engine -o requirements.lock pyproject.toml
	$(UV_COMPILE) --extra web --extra observe -c requirements.lock -o requirements-web.lock pyproject.toml
	$(UV_COMPILE) --extra dev -c requirements.lock -o requirements-dev.lock pyproject.toml
	$(UV_COMPILE) --no-emit-package ninja --extra vllm -c requirements.lock -o requirements-vllm.lock pyproject.toml
	printf '%s\n' $(GPU_OVERRIDES) | $(UV_COMPILE) --no-config --group gpu -c requirements.lock --overrides /dev/stdin -o requirements-gpu.lock
	$(UV_COMPILE) --group tools --no-deps -c requirements-dev.lock -o requirements-tools.lock
	$(BIN)/python -m tests.contracts.licenses

clean: ## Remove what was installed and cached, never your data
	rm -rf .venv .venv-vllm .venv-environments $(NOTEBOOK) node_modules .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis staticfiles
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
