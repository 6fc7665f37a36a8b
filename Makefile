# Each target creates .venv if need be, installs what it needs, and runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Every file that is installed has a SHA-256 in requirements/; the project itself is built by what is installed before it.
HASHED := $(INSTALL) --require-hashes
PROJECT := $(INSTALL) --no-deps --no-build-isolation --editable .
# Through the environment, so that the pins also hold where the package itself is built.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
# Tests start hundreds of processes, each of which would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: oracle test lowest slow standin test-gpu trace planted kill-matrix ulps lint types bench bench-gpu gpu-wheels survey docs docs-serve docs-test requirements clean

# The runtime alone, for `make oracle`; with the test tools, for the rest.
$(VENV)/.runtime: pyproject.toml constraints.txt requirements/build.txt requirements/runtime.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(HASHED) -r requirements/build.txt -r requirements/runtime.txt
	$(PROJECT)
	touch $@

$(VENV)/.test: $(VENV)/.runtime requirements/test.txt
	$(HASHED) -r requirements/test.txt
	touch $@

# Without hashes: PyTorch has builds under one version, of which a user installs the one for the machine (benchmarks/README.md).
$(VENV)/.bench: $(VENV)/.runtime
	$(INSTALL) -e ".[bench]"
	touch $@

# The renderer of equations comes from npm, whose lock file has a hash of each package; npm itself is one of the requirements.
$(VENV)/.docs: $(VENV)/.test requirements/docs.txt docs/katex/package-lock.json
	$(HASHED) -r requirements/docs.txt
	cp docs/katex/package.json docs/katex/package-lock.json $(VENV)
	cd $(VENV) && bin/npm ci --silent --ignore-scripts --no-audit --no-fund || \
	  { echo "make docs: npm did not install KaTeX: it needs a registry, which the environment or npm's own settings name" >&2; exit 1; }
	touch $@

oracle: $(VENV)/.runtime  ## evaluate every recorded case of independent implementations and compare
	$(BIN)/atlas-ref check -v tests/data/peers tests/data/peers_layers tests/data/peers_atlas_mag tests/data/peers_family tests/data/peers_recurrences tests/data/peers_gates tests/data/peers_schedules

test: $(VENV)/.test  ## the tests, warnings as errors
	$(BIN)/python -m pytest -n auto

# Its own environment: lowest.txt in place of the constraints, for the build of the package too.
lowest: export PIP_CONSTRAINT := $(CURDIR)/lowest.txt
lowest:  ## rules, oracle and what they stand on, with the lowest versions that pyproject.toml allows
	test -x build/lowest/bin/python || $(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	build/lowest/bin/python -m pytest -q -n auto tests/tape tests/parts tests/rules tests/oracle

# SLOW="--parameters 8" runs at most eight parameters of each longer proof, spread over all of them.
SLOW ?=
# Examples of a property, in those of make test. The first lines say the seed; EXPLORED=--hypothesis-seed=7 draws those of 7.
EXPLORE ?= 5
slow: $(VENV)/.test  ## the longer proofs, and other examples of every property
	$(BIN)/python -m pytest -n auto -m slow $(SLOW)
	$(BIN)/python -m pytest -n auto -m "hypothesis and not slow" --explore $(EXPLORE) $(EXPLORED)

# What computes, tested where the backend can be chosen.
COMPUTING := tests/backend/test_backend.py tests/backend/test_backend_scalars.py tests/tape/test_backend.py tests/parts tests/rules tests/forms tests/levels tests/layers tests/optim \
	tests/engine/group tests/engine/masked tests/engine/compiled tests/engine/test_recompute.py tests/reductions tests/errata \
	$(wildcard tests/test_conventions*.py tests/oracle/identify/test_equivalence*.py) \
	$(patsubst %,tests/cli/test_%.py,check_command cli identify_command replay_command) tests/test_pytest_plugin.py tests/oracle/test_peers.py tests/oracle/subjects tests/models \
	$(patsubst %,tests/oracle/%.py,cases/test_case judge/test_compare cases/test_levels cases/test_nested_levels cases/test_learned_schedules cases/test_resume judge/test_tolerance)

# Asks which calls lines make, not which numbers: three parameters of a test, six examples of a property show it. PARAMETERS=100000 runs all.
PARAMETERS ?= 3
standin: $(VENV)/.test  ## what computes, on a stand-in that refuses what CuPy refuses
	$(BIN)/python -m pytest -q -n auto --backend strict --parameters $(PARAMETERS) $(COMPUTING)

# By the Python of a machine that has CuPy and NumPy; what it lacks comes from build/wheels (make gpu-wheels). The plugin is found where the package is installed alone.
GPU_PYTHON ?= python3
GPU_SITE = $(CURDIR):$(CURDIR)/build/gpu-site:$$PYTHONPATH
TEST_GPU ?= -n 8 -p no:benchmark
test-gpu:  ## what computes, on a GPU
	$(GPU_PYTHON) benchmarks/gpu/wheels.py build/wheels build/gpu-site
	PYTHONPATH="$(GPU_SITE)" $(GPU_PYTHON) -m pytest -q $(TEST_GPU) tests/engine/cuda
	PYTHONPATH="$(GPU_SITE)" $(GPU_PYTHON) -m pytest -q $(TEST_GPU) --backend cupy --parameters $(PARAMETERS) \
	  $(filter-out tests/test_pytest_plugin.py,$(COMPUTING))

trace: $(VENV)/.test  ## run the tests of every clause under coverage, and report each clause without code or proof
	$(BIN)/python -m pytest -q -n auto -p tests.support.trace_plugin -m clause
	$(BIN)/atlas-ref trace-spec

planted: $(VENV)/.test  ## which mistakes check, replay and identify find in a re-statement by hand, as a table
	$(BIN)/python -m tests.oracle.planted

ulps: $(VENV)/.test  ## our own error against certified results, in units in the last place, for a case of each rule
	rm -rf build/ulps
	mkdir -p build/ulps
	for rule in omega titans_lmm delta hebbian; do $(BIN)/atlas-ref new $$rule --tokens 32 --d-in 8 --d-out 6 --cotangent -o build/ulps/$$rule.safetensors; done
	$(BIN)/atlas-ref new omega --tokens 32 --d-in 8 --d-out 6 --window 4 --cotangent --convention newton_schulz=none -o build/ulps/omega_plain.safetensors
	for member in kda gdn2 rwkv7; do $(BIN)/atlas-ref new dplr --tokens 32 --d-in 8 --d-out 6 --cotangent --parameter member=$$member -o build/ulps/dplr_$$member.safetensors; done
	$(BIN)/atlas-ref new tnt --tokens 32 --d-in 8 --d-out 6 --cotangent -o build/ulps/tnt.safetensors
	$(BIN)/atlas-ref certify build/ulps --grad

kill-matrix: $(VENV)/.test  ## which vector rejects which mutant, as published
	for set in v1 v2; do $(BIN)/atlas-ref vectors kill-matrix $$set --jobs 2 --report vectors/$$set-kill-matrix.md --report vectors/$$set-kill-matrix.json || exit 1; done

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

bench: $(VENV)/.bench  ## speed, each figure beside the bare loop of the same run and its error
	$(BIN)/python -m benchmarks

# On a machine with CuPy, PyTorch and a GPU, by its own Python: BENCH_GPU="--quick", GPU_PYTHON=... Nothing is installed but into build.
GPU_PYTHON_VERSION ?= 3.12
GPU_PLATFORMS := manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64
bench-gpu:  ## speed on a GPU beside PyTorch on the same one, each figure beside its error
	$(GPU_PYTHON) benchmarks/gpu/wheels.py build/wheels build/gpu-site
	PYTHONPATH="$(GPU_SITE)" $(GPU_PYTHON) -m benchmarks.gpu $(BENCH_GPU)

gpu-wheels:  ## what test-gpu and bench-gpu need beside CuPy and PyTorch, as wheels in build/wheels, for a machine without a network
	rm -rf build/wheels
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
	  --python-version $(GPU_PYTHON_VERSION) $(addprefix --platform ,$(GPU_PLATFORMS)) --dest build/wheels --requirement benchmarks/gpu/wheels.txt
	du -sh build/wheels

# SURVEY="--only fla-core --only mlx-lm" asks these again; the other rows stand with their dates.
survey: $(VENV)/.bench  ## ask public packages, each in an environment of its own, every vector that is theirs, and write what they compute
	$(BIN)/python -m benchmarks.survey vectors/v1 --write specs/survey $(SURVEY)

docs: $(VENV)/.docs  ## the site in build/site, strictly: a warning or a link that leads nowhere fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	$(BIN)/python -m docs.check_links build/site

docs-serve: $(VENV)/.docs  ## the site at http://127.0.0.1:8000, made anew when a file changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --no-strict --watch specs --watch docs --watch atlas_ref --watch tape

docs-test: docs  ## every page of the site in Chromium (Debian's package), wide and narrow, light and dark; the page that checks a public kernel
	$(BIN)/python -m pytest -q -n 0 -m "slow or not slow" $(patsubst %,tests/docs/test_%.py,browser equations pages public_kernel)
	$(BIN)/python -m docs.browser build/site --out build/docs-test

# Of every file of a release, so that they hold on each system and for each Python.
COMPILE = $(VENV)/uv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
  --strip-extras --no-emit-package atlas-ref --constraint constraints.txt
requirements:  ## the hashes in requirements/ anew, from pyproject.toml and constraints.txt
	test -x $(VENV)/uv/bin/uv || $(PYTHON) -m venv $(VENV)/uv
	$(VENV)/uv/bin/python -m pip install --quiet --disable-pip-version-check uv
	echo hatchling | $(COMPILE) --output-file requirements/build.txt -
	$(COMPILE) --output-file requirements/runtime.txt pyproject.toml
	for extra in test docs; do $(COMPILE) --extra $$extra --output-file requirements/$$extra.txt pyproject.toml || exit 1; done

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
