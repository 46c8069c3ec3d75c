# The two commands of a newcomer are `make quickstart` and `make test`; CI calls the same ones.
# Everything lives inside the checkout: .venv (the packages), .cache (uv when it is missing, the corpus), workspace.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
RECIPES := vise vise_unigrams vise_similarity uru metaclip datacomp_basic openlvd amoe_highres
.PHONY: help setup quickstart video url_list recaption xray tiny serve $(RECIPES) test test-suite test-fast test-long test-nightly test-interop lint prose format bench docs lock clean

PYTHON_VERSION := 3.11
PYTHON ?= python$(PYTHON_VERSION)
WORKSPACE ?= workspace
ENGINE ?= ray
IMAGES ?=
VIDEOS ?=
LIST ?=
CONTACT ?=
PORT ?=
ENDPOINT ?=
MODEL ?=
KEY ?=
ENCODER ?=
SET ?=
PYTEST ?=
SUITE ?= quick
JOBS ?= 2

BIN := .venv/bin
STAMP := .venv/.ready
export UV_PYTHON_DOWNLOADS := never
export UV_HTTP_TIMEOUT ?= 300
# Containers often set it. Without compiled files every worker of Ray, every rank and every process of tests compiles
# torch again: 4 s each. So `setup` compiles all packages once.
unexport PYTHONDONTWRITEBYTECODE
# The first uv of: PATH, pip's --user folder, the checkout's own. pip's --target leaves a managed system alone.
UV = PATH="$$PATH:$$HOME/.local/bin:$(CURDIR)/.cache/uv/bin" uv

help:  ## what there is to call
	@awk -F ':.*## ' '/^[a-z_-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "quickstart and the recipes take IMAGES=folder (your images instead of OpenClipart), WORKSPACE=path or URL,"
	@echo "ENGINE=ray|local; recipes also SET='variable=value stage.parameter=value';"
	@echo "video takes VIDEOS=folder (your videos instead of generated ones), WORKSPACE and ENGINE;"
	@echo "url_list takes LIST=file, CONTACT='your e-mail address or URL', WORKSPACE, ENGINE and SET;"
	@echo "recaption takes ENDPOINT=base URL, MODEL=name, KEY=env:VARIABLE, IMAGES, WORKSPACE, ENGINE and SET;"
	@echo "xray takes ENDPOINT, MODEL and KEY, for captions in place of titles, WORKSPACE, ENGINE and SET (of the training);"
	@echo "serve takes PORT (8080; 0: any free one) and WORKSPACE; it keeps its database in WORKSPACE-service;"
	@echo "test, test-fast, test-long and test-nightly take PYTEST='arguments', for instance PYTEST='tests/text -x',"
	@echo "and JOBS (processes, 2); lock UPGRADE=--upgrade."

setup: $(STAMP)  ## uv (with pip when missing), .venv, the locked packages, this project
	@:

$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || \
	  { echo "make: no $(PYTHON) on PATH; install Python $(PYTHON_VERSION) or name one: make setup PYTHON=path" >&2; exit 1; }
	@$(UV) --version >/dev/null 2>&1 || \
	  $(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target .cache/uv uv || \
	  { echo "make: no uv, and pip could not fetch it (see above); install python3-pip or uv, then repeat" >&2; exit 1; }
	@[ -x $(BIN)/python ] || $(UV) venv --quiet --clear --python $(PYTHON) .venv
	@echo "setup: the locked packages into .venv (about 5 GB the first time, most of it torch with CUDA)"
	@$(UV) pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

quickstart: $(STAMP)  ## images in, dataset, report and a trained student out
	@$(BIN)/python -m pipelines.quickstart --workspace "$(WORKSPACE)" --engine "$(ENGINE)" $(if $(IMAGES),--images "$(IMAGES)")

video: $(STAMP)  ## videos in, dataset of clips, report and a trained student out
	@$(BIN)/python -m pipelines.video --workspace "$(WORKSPACE)" --engine "$(ENGINE)" $(if $(VIDEOS),--videos "$(VIDEOS)")

url_list: $(STAMP)  ## a list of URLs in, a trained student out; without LIST, the quickstart's corpus over loopback
	@$(BIN)/python -m pipelines.url_list --workspace "$(WORKSPACE)" --engine "$(ENGINE)" \
	  $(if $(LIST),--list "$(LIST)") $(if $(CONTACT),--contact "$(CONTACT)") $(if $(PORT),--port "$(PORT)") \
	  $(foreach value,$(SET),--set "$(value)")

recaption: $(STAMP)  ## captions of images by the model behind ENDPOINT; without it, nonsense by a tiny model
	@$(BIN)/python -m pipelines.recaption --workspace "$(WORKSPACE)" --engine "$(ENGINE)" \
	  $(if $(ENDPOINT),--endpoint "$(ENDPOINT)") $(if $(MODEL),--model "$(MODEL)") $(if $(KEY),--key "$(KEY)") \
	  $(if $(IMAGES),--images "$(IMAGES)") $(foreach value,$(SET),--set "$(value)")

xray: $(STAMP)  ## Xray's stages on datasets of ours: hashtags, sentences, then two texts of an image; a table
	@$(BIN)/python -m pipelines.xray --workspace "$(WORKSPACE)" --engine "$(ENGINE)" \
	  $(if $(ENDPOINT),--endpoint "$(ENDPOINT)") $(if $(MODEL),--model "$(MODEL)") $(if $(KEY),--key "$(KEY)") \
	  $(foreach value,$(SET),--set "$(value)")

tiny: $(STAMP)  ## train the encoder `tiny` from scratch: corpus, training (over an hour), export to WORKSPACE/tiny
	@$(BIN)/python -m pipelines.tiny --workspace "$(WORKSPACE)" --engine "$(ENGINE)" --to "$(WORKSPACE)/tiny"

vise: ## ViSE: sentences balanced by WordNet concepts, on the quickstart's corpus
vise_unigrams: ## ViSE: the same, balanced by words
vise_similarity: ## ViSE: the same, then above a similarity of image and text (tiny, or ENCODER=open_clip:NAME/TAG)
uru: ## URU: pairs of image and canonical tag, balanced by tag (SET=set=nouns: without actions)
metaclip: ## MetaCLIP: texts balanced by a vocabulary
datacomp_basic: ## DataComp's basic filter
openlvd: ## OpenLVD200M in small: a tree of four levels fitted on a subsample, balanced by it
amoe_highres: ## AMoE's high-resolution pool in small: large images, no balance
$(RECIPES): $(STAMP)
	@$(BIN)/python -m pipelines.corpus $@ --workspace "$(WORKSPACE)" --engine "$(ENGINE)" \
	  $(if $(IMAGES),--images "$(IMAGES)") $(if $(ENCODER),--set "encoder=$(ENCODER)") $(foreach value,$(SET),--set "$(value)")

serve: $(STAMP)  ## the service on this machine: pages, API, a local Ray; prints its URL and, the first time, a token
	@[ -d .cache/openclipart/images ] || echo "serve: downloading the example images (OpenClipart, 156 MB) into" \
	  ".cache/openclipart in the background; .cache/openclipart.log says how far it is"
	@mkdir -p .cache; { [ -d .cache/openclipart/images ] || $(BIN)/python -m pipelines.openclipart .cache/openclipart; } \
	  > .cache/openclipart.log 2>&1 < /dev/null &
	@exec $(BIN)/curate service serve --embedded "$(WORKSPACE)" --port $(or $(PORT),8080) --recipes pipelines \
	  --root images=.cache/openclipart/images

RUN = $(BIN)/python -m pytest -n $(JOBS)
QUICK := not long and not nightly

test: $(STAMP)  ## setup, linters, types, architecture, all tests but the long ones (SUITE=ci: with them)
	@mkdir -p .cache
	@$(MAKE) --no-print-directory lint > .cache/lint.txt 2>&1 & linters=$$!; code=0; \
	  $(MAKE) --no-print-directory test-suite || code=$$?; \
	  wait $$linters || code=$$?; cat .cache/lint.txt; exit $$code  # side by side: neither keeps two cores busy

test-suite: $(STAMP)
	@$(RUN) -m "$(if $(filter ci,$(SUITE)),not nightly,$(QUICK))" $(PYTEST)

test-fast: $(STAMP)  ## the tests without Ray, servers and training; under two minutes
	@$(RUN) -m "$(QUICK) and not heavy" $(PYTEST)

test-long: $(STAMP)  ## the long tests: kills at points that the commit draws, damaged inputs, browsers, load
	@$(RUN) -m "long and not nightly" $(PYTEST)

test-nightly: $(STAMP)  ## all tests, every kill point, 100 examples of each property; about an hour
	@CURATE_TEST_POINTS=all HYPOTHESIS_EXAMPLES=100 $(RUN) $(PYTEST)

INTEROP := .venv-interop
LOCKS := $(addprefix tests/interop/,requirements.lock webdataset.lock)
$(INTEROP)/.ready: $(STAMP) $(LOCKS)
	@echo "test-interop: other libraries into $(INTEROP) (about 180 MB), above those of .venv"
	@$(UV) venv --quiet --clear --python $(BIN)/python $(INTEROP)
	@$(UV) pip install --quiet --python $(INTEROP)/bin/python --no-deps --require-hashes -r $(word 1,$(LOCKS))
	@$(UV) pip install --quiet --python $(INTEROP)/bin/python --no-deps --require-hashes -r $(word 2,$(LOCKS)) \
	  --target $(INTEROP)/webdataset-0.2.86
	@printf '%s\n' $(CURDIR)/.venv/lib/python$(PYTHON_VERSION)/site-packages $(CURDIR) \
	  > $(INTEROP)/lib/python$(PYTHON_VERSION)/site-packages/locked.pth
	@touch $@

test-interop: $(INTEROP)/.ready  ## do other readers read datasets and releases, are videos those of ffmpeg, do trackers keep trainings?
	@$(INTEROP)/bin/python -m pytest -q -s -n0 --show-capture=no -p no:cacheprovider $(PYTEST) tests/interop/interop.py tests/interop/croissant.py tests/interop/films.py tests/interop/trackers.py

lint: $(STAMP)  ## ruff, mypy, import-linter, prose
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python docs/tools/prose.py

prose: $(STAMP)  ## idioms that read like a translation, and the plain words for them
	@$(BIN)/python docs/tools/prose.py

format: $(STAMP)  ## format the code and apply the fixes of ruff
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP)  ## figures for docs/benchmarks.md, printed; takes minutes
	@$(BIN)/python -m bench

docs: $(STAMP)  ## the site with its reference in .cache/site/html; a broken link is an error
	@$(BIN)/python -m docs.tools.pages .cache/site
	@cd .cache/site && $(CURDIR)/$(BIN)/zensical build --strict
	@echo "docs: open .cache/site/html/index.html; with search: python3 -m http.server -d .cache/site/html"

COMPILE = $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --no-annotate \
  --python-version $(PYTHON_VERSION) $(UPGRADE)
RUNNER := curate/acquire/runner

lock:  ## requirements.lock from pyproject.toml, the runner's and those of tests/interop, for any platform: versions and hashes, no registry's name
	@$(COMPILE) --extra dev --output-file requirements.lock pyproject.toml
	@$(COMPILE) --output-file $(RUNNER)/requirements.lock $(RUNNER)/requirements.in
	@for lock in $(LOCKS); do $(COMPILE) --no-deps --output-file $$lock $${lock%.lock}.in; done

clean:  ## remove .venv, the caches and the default workspace
	rm -rf .venv .venv-interop .cache workspace workspace-service .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
