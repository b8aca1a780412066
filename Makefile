# Everything there is to set up: `make demo` trains for real, `make test` runs the tests.
.DEFAULT_GOAL := help
.PHONY: help install images manifests demo demo-job demo-argo docs test test-slow test-cluster test-containers test-all mutants lint check bench soak fault-mutants clean

# The first Python of the machine that is new enough.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
BIN := .venv/bin

help: ## What can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

.venv/installed: pyproject.toml constraints.txt .ci/install
	@test -n "$(PYTHON)" || { echo "tf-dist needs Python 3.11 or later: install it, or say make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv .venv
	.ci/install $(BIN)/python --constraint constraints.txt --editable '.[airflow-connection,argo,dev,tensorflow]'
	@touch $@

install: .venv/installed ## Make .venv with everything in it

# What builds images: docker, podman, nerdctl, or any program that takes their `build`.
ENGINE ?= docker
IMAGE ?= tf-dist:$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' tf_dist/__init__.py)
TRAINER ?= tf-dist/digits:latest
images: ## Build the images: tf-dist (IMAGE=...), and the one that the examples train in (TRAINER=...)
	$(ENGINE) build -f deploy/Dockerfile -t $(IMAGE) --build-arg VERSION=$(lastword $(subst :, ,$(IMAGE))) \
		--build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null) .
	$(ENGINE) build -t $(TRAINER) examples/digits

HELM ?= $(shell .ci/helm)
RENDER = $(HELM) template tf-dist deploy/chart --kube-version 1.31
manifests: .venv/installed ## Write what is made from other files: the chart's definitions, and deploy/*.yaml from the chart
	$(BIN)/python -m tools.definitions
	$(RENDER) --namespace tf-dist-system --set createNamespace=true > deploy/tf-dist.yaml
	$(RENDER) --namespace my-namespace --set 'namespaces={my-namespace},crds.enabled=false' > deploy/tf-dist-namespaced.yaml

demo: .venv/installed ## Retrain a digit classifier in Airflow: train, evaluate, promote
	$(BIN)/python examples/airflow/demo.py digits_retrain

demo-job: .venv/installed ## Only train it: 1 parameter server, 2 workers, on your terminal
	$(BIN)/tf-dist run --embedded examples/digits/tfjob.yaml

demo-argo: .venv/installed ## Retrain it in an Argo workflow, where no Argo is installed
	$(BIN)/python -m tests.argo.demo

# Tests start Python hundreds of times: let it keep what it has compiled, also where the machine says otherwise.
test test-slow: export PYTHONDONTWRITEBYTECODE :=
# Most tests wait for processes most of the time, so that several files at a time take a third of it.
PYTEST := $(BIN)/pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

test: .venv/installed ## Run the tests; takes minutes
	$(PYTEST)

SLOW := (slow or thorough or airflow_stack) and not cluster
test-slow: export TF_DIST_TEST_EXAMPLES := all
test-slow: .venv/installed ## Run those that take longer: trainings, a whole Airflow, long fault schedules
	$(PYTEST) -m '$(SLOW)'

test-cluster: .venv/installed ## Run those that need a real API server: TF_DIST_TEST_KUBECONFIG, else K3s in Docker
	$(BIN)/pytest -m cluster

test-containers: .venv/installed ## Run those that need real containers: TF_DIST_TEST_CONTAINERS (docs/testing.md)
	$(BIN)/pytest -m containers tests/containers

test-all: test test-slow test-cluster ## Run all that can run here; takes half an hour

lint: .venv/installed ## Style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test ## All that has to pass

.venv/docs-installed: .venv/installed
	.ci/install $(BIN)/python --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: .venv/docs-installed ## Build the documentation: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

bench: .venv/installed ## Measure; writes benchmarks/results.json and docs/benchmarks.md
	$(BIN)/python -m benchmarks

mutants: .venv/installed ## Change the code in 400 places, one at a time: do the tests near it notice? An hour
	$(BIN)/python -m pip install --quiet --constraint constraints.txt 'mutmut>=3.8'
	$(BIN)/python -m tests.mutation --write

soak: .venv/installed ## Run 50,000 generated fault schedules; takes hours
	TF_DIST_FAULT_RUNS=50000 $(BIN)/pytest -q tests/faults/test_machine.py

fault-mutants: .venv/installed ## Put 40 defects and more into the code, one at a time: the fault machine has to notice
	$(BIN)/python -m tests.faults.mutants

clean: ## Remove what was made
	rm -rf .venv dist build site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .mutants
