# make demo    install what is needed and show real Slurm daemons sharing GPUs
# make check   the tests of make test that need neither Slurm's daemons nor torch
# make test    install what is needed, lint, and run the tests that every change must pass (minutes)
# make test-all   all tests: before a release, and before a larger change is called done (half an hour)
# make mutants  changes of one token each, and the share that the tests of their rooms notice (minutes to hours): N=60 SEED=1
# make test-python   the same tests as make check on every Python found, from 3.9 on, and with torch on the newest
# make docs-check   run every command that README and docs show and print the differences; WRITE=1 updates the pages
# make test-slurm-versions   run the Slurm tests on newer Slurm versions in separate trees (as root)
# make test-layouts   traces on every layout of file systems that this machine can have (as root, up to an hour)
# make test-recovery   the long forms of the recovery tests (as root)
# make test-sweep      a hundred tasks of an array while daemons are killed (as root)
# make test-upgrade   0.1 and this version side by side, part by part up and back while jobs run (as root): ORDERS=1-20 SEED=1 OLD=REVISION
# make bench-accounting   time gpumem report on a million job records (minutes, 4 GB of disk)
# make bench   tests with a bound on time; start-up time of gpusbatch, cost of the Lua hook, start of the dev cluster, as ratios
# make bench-slurmctld   cost of the samplers' questions for slurmctld with 20,000 jobs in the queue (minutes)
# make bench-sampler   cost of the node's sampler with 8 GPUs and 40 processes
# make bench-trace   time to the first step, memory and file size of traces, and how they scale with the batch (needs timm, transformers)
# make bench-estimate  CPU time of one estimate from a text or a trace, in the process that makes it
# make bench-simulate   time and memory of the simulator on large clusters
# make bench-everyday   what people wait for: submitting, reports, a trace that is there already
# make bench-filter   cost of the submission filter of plain sbatch, and 500 submissions at once (minutes)
# make bench-recovery   cost of EpilogSlurmctld for other jobs
# make bench-hooks   cost of Prolog, Epilog and the task hooks in a burst of 300 jobs (minutes, as root)
# make docs    the documentation site, in build/site/VERSION beside earlier versions; needs no network to be read
# make deb     Debian packages, in build/deb (installs what builds them); make rpm: the same for EL, in build/rpm
# make dist    wheel and source archive for PyPI, in dist
# make release   all of these with docs, SBOM and checksums, in build/release: MAINTAINER='Name <mail>' SITE_URL= SIGN_KEY=
# make root-code   the files that run as root on nodes and controller, and their lines
# make test-packages   build them, install, upgrade and remove them in clean Debian 12 and 13 (as root, minutes)
# make lint    ruff, mypy --strict, shellcheck, luac
# make fit     fit similar models and margins on the measured runs in lab/data (a few minutes)
# make fit-workspaces  fit cuDNN's workspaces on the measured convolutions (minutes)
# make fit-utilization  fit utilization and interference on the measured jobs and sets (a few minutes)
# make gpumemnet  train the published estimators of memory on computed labels (half an hour of one core)
# make chapter6  simulate the published evaluation of policies and estimators, published beside simulated
# make ablations  what each mechanism of the estimate buys on the blind sets (minutes)
# make accuracy  score every estimator on the measured training runs in lab/data

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
APT_PACKAGES := slurmctld slurmd slurm-client slurmdbd munge mariadb-server-core mariadb-client-core \
	gcc libc6-dev lua5.1 lua5.3 lua5.4 shellcheck python3-venv chromium man-db groff-base mandoc
CHECK_PACKAGES := gcc libc6-dev slurm-client lua5.1 lua5.3 lua5.4 python3-venv chromium
# Who answers for packages, and their home page: the builder says.
export MAINTAINER SITE_URL SIGN_KEY
DEMO_PACKAGES := slurmctld slurmd slurm-client munge python3-venv
TORCH := torch==2.13.0
TORCH_PYTHONS := 3.10 3.11 3.12 3.13 3.14 3.15
# Every version from the oldest supported on; those that are not on the PATH are listed and left out.
PYTHONS := 3.9 $(TORCH_PYTHONS)
# Tests with daemons mostly wait, so two workers more than cores pay off; no test of these runs has a bound on time.
WORKERS := $(shell n=$$(nproc); echo $$((n > 3 ? 6 : n + 2)))
PYTEST := $(BIN)/python -m pytest
# A worker that dies fails the run.
IN_PARALLEL := -n $(WORKERS) --dist loadfile --max-worker-restart=0
# No bound on time, and nothing of tests/long_tests.txt.
GATE := not timing and not long

# Tests start hundreds of Pythons: compiled files are kept for the next one.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: ablations accuracy chapter6 bench bench-accounting bench-estimate bench-everyday bench-filter bench-hooks bench-recovery bench-sampler bench-simulate bench-slurmctld bench-trace demo fit fit-utilization fit-workspaces gpumemnet check mutants docs-check test test-all test-layouts test-python test-recovery test-slurm-versions test-sweep test-upgrade deb dist docs release root-code rpm test-packages lint format setup setup-test setup-train apt clean

apt:
	@missing=""; for p in $(APT_PACKAGES); do dpkg -s $$p 2>/dev/null | grep -q '^Status: .* installed$$' || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
	  echo "installing:$$missing"; sudo=""; [ "$$(id -u)" = 0 ] || sudo=sudo; \
	  $$sudo apt-get update -qq && \
	  $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
	fi

$(BIN)/gpumem: setup.cfg pyproject.toml
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/.check-ready: $(BIN)/gpumem
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test]'
	@touch $@

$(VENV)/.test-ready: $(VENV)/.check-ready
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(TORCH) numpy
	@touch $@

$(VENV)/.train-ready: $(VENV)/.test-ready
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[train]'
	@touch $@

# The demo needs no database, linter or torch, so that it starts quickly.
demo: APT_PACKAGES := $(DEMO_PACKAGES)
demo: setup
	@$(BIN)/python -m slurm_gpumem.devcluster.demo

setup: apt $(BIN)/gpumem
setup-test: apt $(VENV)/.test-ready
setup-train: setup-test $(VENV)/.train-ready

check: APT_PACKAGES := $(CHECK_PACKAGES)
check: apt $(VENV)/.check-ready
	$(PYTEST) $(IN_PARALLEL) --without-torch -rfE -m 'not slurm and $(GATE)'

test: setup-test lint
	$(PYTEST) $(IN_PARALLEL) -m '$(GATE)'

test-all: setup-test lint
	GPUMEM_TEST_EXAMPLES=100 $(PYTEST) $(IN_PARALLEL) -m 'not timing'

test-python:
	@tests/test-python.sh '$(PYTHONS)' '$(TORCH_PYTHONS)' '$(TORCH)' $(IN_PARALLEL) -m 'not slurm and $(GATE)'

# A virtual environment of its own: nothing of it is needed elsewhere.
.cache/docs/.ready: packaging/requirements-docs.txt
	@$(PYTHON) -m venv .cache/docs && .cache/docs/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

# SITE: the folder in which versions lie beside each other; those that are there stay.
SITE := build/site
docs: .cache/docs/.ready
	PYTHONPATH=. packaging/site.sh .cache/docs/bin/python \
	  $(SITE)/$$(PYTHONPATH=. .cache/docs/bin/python -c 'import slurm_gpumem; print(slurm_gpumem.__version__)')
	.cache/docs/bin/python packaging/site_versions.py $(SITE)

deb: APT_PACKAGES := build-essential debhelper dh-python fakeroot lintian mkdocs mkdocs-material pybuild-plugin-pyproject \
	python3-all python3-setuptools
deb: apt
	@packaging/deb.sh build/deb
	lintian --fail-on error,warning build/deb/*.changes

# SITE_URL: where the pages of this repository are, for the links in the description; without it they are plain text.
.cache/dist/.ready: packaging/requirements-dist.txt
	@$(PYTHON) -m venv .cache/dist && .cache/dist/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

dist: .cache/dist/.ready
	@packaging/dist.sh .cache/dist/bin/python dist $(SITE_URL)
	.cache/dist/bin/python -m twine check --strict dist/*

release: APT_PACKAGES := build-essential debhelper dh-python fakeroot mkdocs mkdocs-material pybuild-plugin-pyproject \
	python3-all python3-setuptools rpm
release: apt .cache/dist/.ready .cache/docs/.ready
	@packaging/release.sh build/release

# What Prolog, Epilog and sampler load (slurm_gpumem.node and all that it imports), and the shell around them.
root-code: $(BIN)/gpumem
	@PYTHONPATH=. $(BIN)/python -m tests.support.root_code

# RPM_PYTHON: the Python of the distribution that the packages are for (EL 9: 3.9, EL 10: 3.12).
RPM_PYTHON := 3.9
rpm: APT_PACKAGES := rpm rpmlint
rpm: apt
	@packaging/rpm.sh build/rpm $(RPM_PYTHON)
	rpmlint --config packaging/rpmlint.toml packaging/slurm-gpumem.spec build/rpm/*.rpm

test-packages: APT_PACKAGES += mmdebstrap
test-packages: export MAINTAINER := Test of packages <test@example.org>
test-packages: setup-test deb rpm
	GPUMEM_TEST_LONG=1 $(PYTEST) tests/packaging

# ARGS: folders of the product that are changed.
N := 60
SEED := 1
mutants: setup-test
	$(BIN)/python -m tests.mutants --number $(N) --seed $(SEED) $(ARGS)

docs-check: setup-test
	$(BIN)/python -m tests.docs.check $(if $(WRITE),--write) $(if $(SLOW),--slow)

# Debian suites with newer Slurm versions: 24.11 and 26.05. Needs root; the trees are kept in .cache.
SLURM_SUITES := trixie sid
# Left out is what does not meet Slurm's version: traces before the submission, layouts, installing, the lab.
MEETS_SLURM := --ignore=tests/tracing --ignore=tests/packaging --ignore=tests/lab \
	-k 'not test_gpusbatch_trace.py or trace_job or job_traces or strangers'

test-slurm-versions: APT_PACKAGES += debootstrap
test-slurm-versions: setup-test
	@mkdir -p .cache/slurm-trees
	@for suite in $(SLURM_SUITES); do \
	  tree=$(CURDIR)/.cache/slurm-trees/$$suite; \
	  echo "Slurm of Debian $$suite"; tests/slurm-tree.sh $$suite $$tree && \
	  GPUMEM_TEST_SLURM_ROOT=$$tree $(PYTEST) $(IN_PARALLEL) $(MEETS_SLURM) -m 'slurm and not timing' || exit 1; \
	done

# What layouts and scripts need beyond the tests: FUSE, XFS, containers, and a folder with transformers and
# Lightning (make test-layouts LAYOUT_PACKAGES=VENV/lib/python3.11/site-packages uses one that is there).
LAYOUT_PACKAGES := .cache/layout-packages
test-layouts: APT_PACKAGES += bindfs fuse3 xfsprogs cron at openssh-server bubblewrap charliecloud-runtime
test-layouts: setup-test
	@[ -d $(LAYOUT_PACKAGES) ] || $(BIN)/python -m pip install -q --disable-pip-version-check --target $(LAYOUT_PACKAGES) \
	  --constraint <(echo '$(TORCH)') transformers accelerate pytorch-lightning
	GPUMEM_TEST_PACKAGES=$(abspath $(LAYOUT_PACKAGES)) $(PYTEST) -rs tests/tracing/layouts tests/tracing/guard

# Kills the hook at every step and runs a hundred jobs at once: too slow for every day.
test-recovery: setup-test
	GPUMEM_TEST_LONG=1 $(PYTEST) tests/recovery

# A hundred tasks while sampler, controller and first task are killed: twelve rows, two minutes each.
test-sweep: setup-test
	GPUMEM_TEST_LONG=1 $(PYTEST) -s tests/submission/sweep/test_hundred.py

# From an earlier version and back, part by part, in orders FIRST-LAST, on real daemons (as root, two minutes each).
ORDERS := 1-20
OLD := a363fc02
test-upgrade: setup-test
	@rm -rf .cache/upgrade && mkdir -p .cache/upgrade && git archive $(OLD) slurm_gpumem models lua prolog | tar -x -C .cache/upgrade
	GPUMEM_TEST_ORDERS=$(ORDERS) GPUMEM_TEST_SEED=$(SEED) GPUMEM_TEST_OLD_TREE=$(CURDIR)/.cache/upgrade \
	  $(PYTEST) -s tests/upgrade

# A million job records: minutes, and 4 GB of disk.
bench-accounting: setup-test
	$(BIN)/python tests/bench/accounting.py

# Bounds on time hold on an idle machine only.
bench: setup-test
	$(PYTEST) -m timing $$(grep -rl 'pytest\.mark\.timing' tests --include='test_*.py')
	$(BIN)/python tests/bench/bench.py
	$(BIN)/python tests/bench/slurmctld.py

bench-everyday: setup-test
	PYTHONPATH=. $(BIN)/python tests/bench/everyday.py

bench-slurmctld: setup-test
	$(BIN)/python tests/bench/slurmctld.py

bench-sampler: setup-test
	$(BIN)/python tests/bench/sampler.py

# A million jobs on ten thousand GPUs too: ARGS=--largest, some minutes.
bench-simulate: $(BIN)/gpumem
	PYTHONPATH=. $(BIN)/python tests/bench/simulate.py $(ARGS)

bench-estimate: $(BIN)/gpumem
	$(BIN)/python tests/bench/estimate.py

bench-trace: setup-test
	PYTHONPATH=. $(BIN)/python tests/bench/first_step.py
	$(BIN)/python tests/bench/trace.py

bench-recovery: setup-test
	$(BIN)/python tests/bench/recovery.py

bench-filter: setup-test
	PYTHONPATH=. $(BIN)/python tests/bench/filter.py

bench-hooks: setup-test
	$(BIN)/python tests/bench/hooks.py $(ARGS)

lint: setup-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	@for file in lua/*.lua tests/lua/*.lua; do luac5.1 -p "$$file" || exit 1; done
	shellcheck .ci/run $$(git ls-files '*.sh')

format: setup-test
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

accuracy: $(BIN)/gpumem
	@$(BIN)/python -m lab.score.command
	@echo
	@$(BIN)/python -m lab.score.command --utilization

# ARGS: lists, or --texts lab/data/blind-check-4
ablations: $(BIN)/gpumem
	@$(BIN)/python -m lab.ablations $(ARGS)

fit: $(BIN)/gpumem
	@$(BIN)/python -m lab.fit.similar_models $(ARGS)
	@$(BIN)/python -m lab.fit.margins $(ARGS)

fit-workspaces: setup-train
	@$(BIN)/python -m lab.fit.workspaces
	@$(BIN)/python -m lab.fit.fourier

fit-utilization: setup-train
	@$(BIN)/python -m lab.fit.interference
	@$(BIN)/python -m lab.fit.priority
	@$(BIN)/python -m lab.fit.turns
	@OMP_NUM_THREADS=1 $(BIN)/python -m lab.fit.utilization

# Its own traces; the authors' with ARGS="--replay-60 FILE --replay-90 FILE".
chapter6: $(BIN)/gpumem
	@$(BIN)/python -m lab.chapter6.study $(ARGS)

# What it has computed stays in build/gpumemnet: a run that was stopped goes on where it was.
gpumemnet: setup-train
	@$(BIN)/python -W ignore -m lab.gpumemnet.train $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info
