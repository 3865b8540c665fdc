# On a machine with Python 3.10+, a C++ compiler and make, each command makes what it needs; `make help` lists them.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin
# Each module is compiled when it is first imported: most of what is installed never is.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check -q install --no-compile
PYTEST := $(BIN)/python -m pytest
# Not --dist worksteal, by which pytest-xdist was seen to wait for ever near the end of the tests.
TWO := -n 2
# Of all tests many wait for processes that they start: two workers left two cores idle for a quarter of the time, and four
# take 0.95 of the time of three. Few of the fast ones wait.
FOUR := -n 4
# Prints the packages of extras of pyproject.toml; installing the project with them would compile everything again.
EXTRA := $(BIN)/python -c 'import importlib.metadata as m, sys; print(*(r.split(";")[0] for r in m.requires("torch_gnnscale") if r.partition("extra == ")[2][1:-1] in sys.argv[1:]))'
NATIVE := $(shell find cuda -name '*.cpp' -o -name '*.cu' -o -name '*.h')
# Which tests run against a library with sanitizers: the fast ones; TESTS="not cuda" names all of them.
TESTS ?= not slow
# The environment of tests against a library with AddressSanitizer and UBSan.
SANITIZED := LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=. ../../$(BIN)/python -m pytest $(TWO) -p no:cacheprovider

# Tests start hundreds of processes, each of which would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help train quick test nightly lint style types sanitize races emulate dist matrix corners aarch64 docs notebooks fuzz soak test-cuda gpu clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

train: $(VENV)/installed ## install, build and train GraphSAGE on a generated graph
	@echo "== gnnscale train"
	@$(BIN)/gnnscale train

quick: lint ## what a change needs: lint and the fast tests, without those for a GPU
	$(PYTEST) $(TWO) -m "not slow and not cuda"

test: $(VENV)/test ## all tests but the nightly ones, and what fast ones cover
	@mkdir -p build
	$(PYTEST) $(FOUR) -m "not nightly" --cov --cov-report=term

nightly: $(VENV)/test ## the tests that `make test` leaves out, and random ones with four times as many examples
	$(PYTEST) $(FOUR) -m "nightly or hypothesis" --hypothesis-profile=nightly

$(VENV)/torch:
	@echo "== an environment for Python in $(VENV)/"
	@$(PYTHON) -m venv $(VENV)
	@echo "== $(TORCH), which is large, and what builds the library"
	@$(subst -q,,$(INSTALL)) "$(TORCH)"
	@$(INSTALL) "setuptools>=77" wheel ninja numpy
	@touch $@

$(VENV)/installed: $(VENV)/torch pyproject.toml setup.py $(NATIVE)
	@echo "== compiling the native library: all of it takes a minute or two, and the next time only what changed"
	@$(BIN)/python setup.py -q build_ext --inplace
	@echo "== the package, torch_geometric and matplotlib"
	@$(INSTALL) --no-build-isolation -e ".[plot]"
	@touch $@

$(VENV)/test: $(VENV)/installed
	$(INSTALL) $$($(EXTRA) test)
	-$(INSTALL) $$($(EXTRA) spark)  # tests that need it, Ray or S3 say so where it cannot be had
	-$(INSTALL) $$($(EXTRA) ray)
	-$(INSTALL) $$($(EXTRA) test-s3)
	-$(PYTEST) --collect-only -qq > /dev/null  # compiles what tests import, once: else each of four processes does so
	touch $@

$(VENV)/lint: $(VENV)/test
	$(INSTALL) $$($(EXTRA) lint notebook)
	touch $@

lint: style types ## style and types

style: $(VENV)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(NATIVE) $(shell find tests/emulation -name '*.cpp' -o -name '*.h' -o -name '*.cuh')

types: $(VENV)/lint
	$(BIN)/mypy

# In a copy of the sources, whose library has other flags; `make emulate` links its objects, too.
build/sanitize/library: $(VENV)/test setup.py $(NATIVE)
	rm -rf build/sanitize && mkdir -p build/sanitize
	cp -r setup.py pyproject.toml README.md LICENSE cuda torch_gnnscale build/sanitize
	rm -f build/sanitize/torch_gnnscale/*.so
	cd build/sanitize && FORCE_CUDA=0 GNNSCALE_SANITIZE=1 ../../$(BIN)/python setup.py -q build_ext --inplace
	mv build/sanitize/torch_gnnscale/_C.so $@

sanitize: build/sanitize/library ## the fast native tests under AddressSanitizer and UBSan
	rm -rf build/sanitize/torch_gnnscale build/sanitize/tests
	cp -r pyproject.toml torch_gnnscale tests build/sanitize
	rm -f build/sanitize/torch_gnnscale/*.so && cp build/sanitize/library build/sanitize/torch_gnnscale/_C.so
	cd build/sanitize && $(SANITIZED) \
		$(addprefix tests/ops/test_,ops.py gather_tiers.py gather_each.py sample_neighbors.py sample_ways.py sample_modes.py \
		sample_windows.py tree_blocks.py foreign_keys.py sample_bulk.py layerwise.py layerwise_refused.py layer_bulk.py negatives.py \
		aggregation.py aggregation_refused.py partition.py pool.py map_file.py philox.py raw_calls.py) \
		tests/distributed/test_hops.py tests/split/test_cut.py tests/feature/test_hotness.py tests/topology/test_reorder.py \
		tests/topology/test_topology.py -m "$(TESTS) or (sanitized and not nightly)" -k "not a_billion_nodes"

# In a copy of the sources, with the plain library's objects but for what is watched. The threads are Python's, for
# ThreadSanitizer does not know those of OpenMP; a race makes the exit status 66.
races: $(VENV)/test ## what several threads write, under ThreadSanitizer
	rm -rf build/races && mkdir -p build/races
	cp -r pyproject.toml cuda torch_gnnscale tests build/races
	rm -f build/races/torch_gnnscale/*.so
	cd build/races && ../../$(BIN)/python tests/native/races.py ../objects
	cd build/races && LD_PRELOAD="$$(gcc -print-file-name=libtsan.so)" TSAN_OPTIONS=exitcode=66 PYTHONPATH=. \
		../../$(BIN)/python -m pytest -p no:cacheprovider tests/ops/test_gather_tiers.py -k several_threads

# In a copy of the sources. Rows on disk are the CPU's, ids out of range that only a GPU sees end a process, and the
# emulation keeps all memory to the end of a call. Random layer-wise batches are those of tests/emulation, on smaller
# graphs.
emulate: build/sanitize/library ## the operators of the .cu files, run by threads of the CPU under both sanitizers
	rm -rf build/emulate && mkdir -p build/emulate
	cp -r pyproject.toml cuda torch_gnnscale tests build/emulate
	rm -f build/emulate/torch_gnnscale/*.so
	cd build/emulate && ../../$(BIN)/python tests/emulation/build.py ../sanitize/build/objects
	cd build/emulate && $(SANITIZED) \
		tests/emulation tests/ops/test_sample_bulk.py tests/loader/test_loader_bulk.py \
		tests/loader/test_random_loaders.py::test_random_loaders tests/loader/test_random_loaders.py::test_random_modes tests/ops/test_layer_bulk.py \
		tests/ops/test_gather_tiers.py tests/ops/test_aggregation.py \
		tests/nn/test_narrow.py tests/nn/test_weigh.py -m "$(TESTS)" \
		-k "not (random_loaders and dealt) and not equals_the_twin and not rows_of_a_file and not broken_map and not scratch_memory and not random_batches"

$(VENV)/wheel: $(VENV)/installed
	$(INSTALL) $$($(EXTRA) wheel)
	touch $@

# Of a wheel: torch's libraries stay out of it, for they are those of the torch that is installed. What needs more than
# the system that torch's own wheels need is refused.
REPAIR := auditwheel repair --plat manylinux_2_28_$(shell uname -m) --only-plat --exclude 'libtorch*.so' --exclude 'libc10*.so'

build/wheel/made: $(VENV)/installed pyproject.toml README.md $(shell find torch_gnnscale -name '*.py')
	rm -rf build/wheel build/lib.*  # which has the CUDA part if that was compiled
	FORCE_CUDA=0 $(BIN)/python -m pip wheel -q --no-build-isolation --no-deps -w build/wheel .
	touch $@

# At the end some of the source distribution's tests try the wheel.
dist: $(VENV)/wheel $(VENV)/test build/wheel/made ## the source distribution and the manylinux wheel, in dist/
	rm -rf dist build/sdist build/site && mkdir -p build/sdist
	$(BIN)/python -m build -q --no-isolation --sdist
	PATH="$(abspath $(BIN)):$$PATH" $(REPAIR) -w dist build/wheel/*-py3-none-*.whl
	tar xzf dist/*.tar.gz -C build/sdist --strip-components 1 && rm -r build/sdist/torch_gnnscale
	$(INSTALL) --no-deps --target build/site dist/*.whl
	cd build/sdist && PYTHONPATH=../site ../../$(BIN)/python -m pytest -p no:cacheprovider -m "not slow" tests/native tests/topology/test_topology.py tests/topology/test_files.py tests/loader/test_loader.py

# CELLS="3.10/2.11/2.6 3.13/2.13/2.8" names some of them.
matrix: build/wheel/made ## the fast tests with torch 2.11 to 2.13, PyG 2.6 to 2.8, Python 3.10 to 3.13
	$(BIN)/python .ci/matrix.py build/wheel/*.whl $(CELLS)

corners: build/wheel/made ## a few tests with the oldest and the newest Python, torch and PyG, where they install
	$(BIN)/python .ci/matrix.py build/wheel/*.whl $(CELLS) --corners

aarch64: $(VENV)/installed ## the library cross-compiled for aarch64, and some of its tests emulated
	.ci/aarch64 $(BIN)/python

$(VENV)/docs: $(VENV)/installed
	$(INSTALL) $$($(EXTRA) docs)
	touch $@

docs: $(VENV)/docs ## the documentation in build/docs; a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

# On a thread each: two that have two threads wait for each other's.
notebooks: $(VENV)/lint ## run the notebooks, two at a time
	printf '%s\n' notebooks/*.ipynb | OMP_NUM_THREADS=1 xargs -P 2 -n 1 $(BIN)/python notebooks/execute.py

fuzz: $(VENV)/test ## 110,000 cases of arguments, files, directories and tables that nobody would write; GNNSCALE_FUZZ_SEED repeats a run
	seed=$${GNNSCALE_FUZZ_SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}; \
	echo "repeat with: make fuzz GNNSCALE_FUZZ_SEED=$$seed"; \
	GNNSCALE_FUZZ=$${GNNSCALE_FUZZ:-100000} $(PYTEST) $(TWO) tests/test_fuzz.py \
	tests/tables/test_dirty_tables.py --hypothesis-profile=fresh --hypothesis-seed=$$seed

soak: $(VENV)/test ## ten thousand batches, a thousand loaders, fifty epochs of ranks, kills
	GNNSCALE_SOAK=1 $(PYTEST) tests/test_soak.py tests/loader/test_resume.py tests/distributed/test_leaks.py \
		tests/distributed/test_failures.py -k "not batches_that_would"

test-cuda: $(VENV)/test ## the tests that need a GPU
	$(PYTEST) -m cuda

# By the Python that is active: no environment is made.
gpu: ## build, probe, tests, figures and memory checks on a GPU
	$(PYTHON) benchmarks/run_gpu.py

clean: ## remove everything that these commands made
	rm -rf $(VENV) build dist docs/notebooks *.egg-info torch_gnnscale/*.so runs
