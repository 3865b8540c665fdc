# Two commands do everything on a machine with Python 3.10+, a C++ compiler and make: `make train` and `make test`.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# Prints the packages of extras of pyproject.toml; installing the project with them would compile everything again.
EXTRA := $(BIN)/python -c 'import importlib.metadata as m, sys; print(*(r.split(";")[0] for r in m.requires("torch_gnnscale") if r.partition("extra == ")[2][1:-1] in sys.argv[1:]))'
NATIVE := $(shell find cuda -name '*.cpp' -o -name '*.cu' -o -name '*.h')

.PHONY: train test lint sanitize emulate notebooks fuzz soak test-cuda gpu clean

train: $(VENV)/installed
	$(BIN)/gnnscale train

test: $(VENV)/test
	$(BIN)/python -m pytest

$(VENV)/torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install "$(TORCH)"
	$(PIP) install "setuptools>=77" wheel ninja numpy
	touch $@

$(VENV)/installed: $(VENV)/torch pyproject.toml setup.py $(NATIVE)
	$(PIP) install --no-build-isolation -e ".[plot]"
	touch $@

$(VENV)/test: $(VENV)/installed
	$(PIP) install $$($(EXTRA) test)
	touch $@

$(VENV)/lint: $(VENV)/test
	$(PIP) install $$($(EXTRA) lint notebook)
	touch $@

lint: $(VENV)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(NATIVE) $(shell find tests/emulation -name '*.cpp' -o -name '*.h' -o -name '*.cuh')
	$(BIN)/mypy

# The native tests against a library built with AddressSanitizer and UBSan, in a copy of the sources.
sanitize: $(VENV)/test
	rm -rf build/sanitize && mkdir -p build/sanitize
	cp -r setup.py pyproject.toml README.md LICENSE cuda torch_gnnscale tests build/sanitize
	rm -f build/sanitize/torch_gnnscale/*.so
	cd build/sanitize && FORCE_CUDA=0 GNNSCALE_SANITIZE=1 ../../$(BIN)/python setup.py -q build_ext --inplace
	cd build/sanitize && LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=. ../../$(BIN)/python -m pytest -p no:cacheprovider \
		$(addprefix tests/ops/test_,ops.py gather_tiers.py sample_neighbors.py sample_modes.py sample_bulk.py \
		negatives.py aggregation.py pool.py map_file.py philox.py) \
		tests/feature/test_hotness.py tests/topology/test_reorder.py tests/topology/test_topology.py -k "not wrap_of_its_tags and not a_billion_nodes"

# The operators of the .cu files by threads that stand for a GPU's lanes, under both sanitizers, in a copy of the sources.
# Rows on disk are the CPU's, and a map with an entry out of range ends a process on a GPU.
emulate: $(VENV)/test
	rm -rf build/emulate && mkdir -p build/emulate
	cp -r pyproject.toml cuda torch_gnnscale tests build/emulate
	rm -f build/emulate/torch_gnnscale/*.so
	cd build/emulate && ../../$(BIN)/python tests/emulation/build.py
	cd build/emulate && LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=. ../../$(BIN)/python -m pytest -p no:cacheprovider \
		tests/emulation tests/ops/test_sample_bulk.py tests/loader/test_loader_bulk.py tests/ops/test_gather_tiers.py \
		-k "not equals_the_twin and not rows_of_a_file and not broken_map"

notebooks: $(VENV)/lint
	$(BIN)/python notebooks/execute.py notebooks/*.ipynb

# A hundred thousand cases of arguments and files that nobody would write; by default `make test` tries a sample.
fuzz: $(VENV)/test
	GNNSCALE_FUZZ=$${GNNSCALE_FUZZ:-100000} $(BIN)/python -m pytest tests/test_fuzz.py

# Ten thousand batches, a thousand loaders, twenty kills.
soak: $(VENV)/test
	GNNSCALE_SOAK=1 $(BIN)/python -m pytest tests/test_soak.py tests/loader/test_resume.py -k "not batches_that_would"

test-cuda: $(VENV)/test
	$(BIN)/python -m pytest -m cuda

# Build, tests, figures and memory checks on a GPU, by the Python that is active: no environment is made.
gpu:
	$(PYTHON) benchmarks/run_gpu.py

clean:
	rm -rf $(VENV) build dist *.egg-info torch_gnnscale/*.so runs
