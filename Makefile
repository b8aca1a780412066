# Everything there is to set up: `make demo` trains for real, `make test` runs the tests.
.DEFAULT_GOAL := help
.PHONY: help install images manifests reference demo demo-job demo-argo docs site-pictures test test-slow test-stack test-faults test-packages \
	test-clients test-airflow-lines test-newest-python test-api-server node-images test-nodes test-cluster test-containers test-all \
	mutants lint check bench soak fault-mutants nightly clean

# The first Python of the machine that is new enough.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
BIN := .venv/bin

# Tests and benchmarks start Python hundreds of times: let it keep what it has compiled, also where the machine says otherwise.
export PYTHONDONTWRITEBYTECODE :=

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# Where there is an NVIDIA driver, TensorFlow comes with CUDA. tf_keras (Keras 2) asks for a TensorFlow of its own.
NVIDIA_DRIVER ?= /proc/driver/nvidia/version
TENSORFLOW = $(if $(wildcard $(NVIDIA_DRIVER)),tensorflow-gpu,tensorflow)
.venv/installed: pyproject.toml constraints.txt .ci/install
	@test -n "$(PYTHON)" || { echo "tf-dist needs Python 3.11 or later: install it, or say make PYTHON=/path/to/python"; exit 1; }
	@echo "Airflow, TensorFlow and the tools of the tests go into .venv: 2.3 GB (with CUDA several more), about two minutes"
	$(PYTHON) -m venv .venv
	.ci/install $(BIN)/python --constraint constraints.txt --editable '.[airflow-connection,argo,dev,$(TENSORFLOW)]'
	.ci/install $(BIN)/python --constraint constraints.txt --no-deps tf_keras
	@touch $@

install: .venv/installed ## Create .venv with everything that the other targets need

# What builds images: docker, podman, nerdctl, or any program that takes their `build`.
ENGINE ?= docker
IMAGE ?= tf-dist:$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' tf_dist/__init__.py)
TRAINER ?= tf-dist/digits:latest
images: ## Build two images: tf-dist (IMAGE=...) and the training image of the examples (TRAINER=...)
	$(ENGINE) build -f deploy/Dockerfile -t $(IMAGE) --build-arg VERSION=$(lastword $(subst :, ,$(IMAGE))) \
		--build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null) .
	$(ENGINE) build -t $(TRAINER) examples/digits

HELM ?= $(shell .ci/helm)
RENDER = $(HELM) template tf-dist deploy/chart --kube-version 1.35
manifests: .venv/installed ## Write all generated files: CRDs, deploy/*.yaml and the reference pages
	$(BIN)/python -m tools.definitions
	$(RENDER) --namespace tf-dist-system --set createNamespace=true > deploy/tf-dist.yaml
	$(RENDER) --namespace my-namespace --set 'namespaces={my-namespace},crds.enabled=false' > deploy/tf-dist-namespaced.yaml
	$(BIN)/python -m docs.generator

reference: .venv/installed ## Write the reference pages of docs/ from docstrings, help texts and tables
	$(BIN)/python -m docs.generator

demo: .venv/installed ## Retrain a digit classifier in Airflow: train, evaluate, promote
	$(BIN)/python examples/airflow/demo.py digits_retrain

demo-job: .venv/installed ## Train it once without Airflow: 1 parameter server, 2 workers
	$(BIN)/tf-dist run --embedded examples/digits/tfjob.yaml

demo-argo: .venv/installed ## Retrain it as an Argo workflow, without an installed Argo
	$(BIN)/python -m tests.argo.demo

# Most tests wait for processes most of the time, so that several files at a time take a third of it.
PYTEST := $(BIN)/pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

test: .venv/installed ## Run the tests; takes minutes
	$(PYTEST)

test-slow: export TF_DIST_TEST_EXAMPLES := all
test-slow: .venv/installed ## Run the slow tests: trainings and long property tests
	$(PYTEST) -m '(slow or thorough) and not airflow_stack and not cluster'

test-stack: .venv/installed ## Run the tests in a complete Airflow: scheduler, triggerer, API server
	$(BIN)/pytest -m airflow_stack tests/airflow

test-faults: .venv/installed ## Run 360 generated fault schedules, and 100 from CI_SEED on
	TF_DIST_FAULT_RUNS=360 $(BIN)/pytest -q tests/faults/test_machine.py
	$(BIN)/python -m tests.faults --from $(CI_SEED) --count 100
CI_SEED ?= 1000

test-packages: .venv/installed ## Build sdist and wheel, and test the wheel and its extras in empty environments
	folder=$$(mktemp -d); .ci/packages $$folder local login argo; status=$$?; rm -rf $$folder; exit $$status

test-clients: .venv/installed ## Run the tests of the official Kubernetes client with its other supported versions
	.ci/clients 35 37

test-airflow-lines: ## Run the Airflow tests with the oldest supported version
	folder=$$(mktemp -d); .ci/airflow-line 3.0 $$folder; status=$$?; rm -rf $$folder; exit $$status

test-newest-python: ## Run the tests on Python 3.13, if it is installed
	.ci/newest-python

test-api-server: .venv/installed ## Run test-cluster on the Kubernetes of ../shared, if it is built
	.ci/cluster api

node-images: .venv/installed ## Build the images of test-nodes, unless the checkout has not changed since
	.ci/cluster images

test-nodes: .venv/installed ## Run test-containers on three nodes of ../shared, if they are built
	.ci/cluster containers

test-cluster: .venv/installed ## Run the tests that need a real API server: TF_DIST_TEST_KUBECONFIG, or K3s in Docker
	$(BIN)/pytest -m cluster

test-containers: .venv/installed ## Run the tests that need real containers: TF_DIST_TEST_CONTAINERS (docs/testing.md)
	$(BIN)/pytest -m containers tests/containers

test-all: test test-slow test-stack test-cluster ## Run all of these tests that can run here; takes half an hour

lint: .venv/installed ## Check style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test ## Run what has to pass before a commit

.venv/docs-installed: .venv/installed
	.ci/install $(BIN)/python --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: .venv/docs-installed ## Build the documentation: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

site-pictures: docs ## Open the site offline in Chromium and take screenshots: site-pictures/
	$(BIN)/python -m pip install --quiet --constraint constraints.txt playwright
	$(BIN)/python -m docs.generator.pictures site

bench: .venv/installed ## Run the benchmarks; writes benchmarks/results.json and docs/benchmarks.md
	$(BIN)/python -m benchmarks

bench-peers: .venv/installed ## Measure tf-dist beside Kueue, Volcano and others, which Go builds; 80 minutes (QUICK=1: 30)
	$(BIN)/python -m benchmarks.peers $(if $(QUICK),--quick)

mutants: .venv/installed ## Change the code in 200 places chosen by CI_SEED, one at a time, and run the tests
	$(BIN)/python -m tests.mutation --seed $(CI_SEED)

soak: .venv/installed ## Run 50,000 generated fault schedules; takes hours
	TF_DIST_FAULT_RUNS=50000 $(BIN)/pytest -q tests/faults/test_machine.py

fault-mutants: .venv/installed ## Insert more than 40 defects, one at a time; the fault machine must detect each
	$(BIN)/python -m tests.faults.mutants

nightly: CI_SEED := $(shell date +%s)
nightly: export TD_ALL_CASES := 1
nightly: test-slow test-stack fault-mutants mutants ## Run what takes hours, with new seeds each time
	$(BIN)/python -m tests.faults --from $(CI_SEED) --count 2000 --keep-going

clean: ## Remove all built files
	rm -rf .venv dist build site site-pictures .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
