# The README's two commands are `make demo` and `make test`. Both are safe to repeat.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
OUT    ?= runs/digits

NATIVE  := hatch_build.py $(wildcard src/attsvm/native/*.cpp src/attsvm/native/*.hpp src/attsvm/native/*.h)

.PHONY: wheels demo test test-slow test-asan test-zig test-oldest lint docs bench clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras, so that `make demo` does not wait for the test tools.
$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[test,lint,docs]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/attsvm fit digits --out $(OUT)

# Modules are compiled once for all processes, where the environment says otherwise, too. Three
# processes keep two cores busy while tests wait for what they have started.
test: $(VENV)/.dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m 'not slow' -n 3 --dist worksteal

test-slow: $(VENV)/.dev
	ATTSVM_EXAMPLES=thorough $(BIN)/python -m pytest -m slow

# The compiled core with checks of every address and number, under gcc.
test-asan: $(VENV)/.dev
	$(BIN)/python hatch_build.py build/asan --sanitize
	ATTSVM_NATIVE=build/asan ASAN_OPTIONS=detect_leaks=0 \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	$(BIN)/python -m pytest -q -n 0 tests/native

# The compiled core as it is where no C++ compiler is installed; downloads 100 MB.
test-zig: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ziglang
	CXX="$(BIN)/python -m ziglang c++" $(BIN)/python hatch_build.py build/zig
	ATTSVM_NATIVE=build/zig $(BIN)/python -m pytest -q -m 'not slow' -n 0 tests/native

# Downloads gigabytes: PyPI's torch of then brings its CUDA libraries.
test-oldest:
	test -x $(VENV)-oldest/bin/python || $(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt -e '.[test]'
	$(VENV)-oldest/bin/python -m pytest -m 'not slow' -n 3 --dist worksteal -W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_typing.py
	$(BIN)/lint-imports

docs: $(VENV)/.dev
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

# A wheel for each platform, compiled here by zig, and the source archive; then what an index asks of them.
WHEELS := linux-x86_64 linux-aarch64 macos-x86_64 macos-arm64 windows-x86_64

$(VENV)/.release: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'auditwheel>=6' 'build>=1.2' 'hatchling>=1.26' 'lief>=0.16' 'twine>=6' 'ziglang>=0.15'
	@touch $@

wheels: $(VENV)/.release
	rm -rf dist
	$(BIN)/python -m build --no-isolation --sdist --outdir dist
	for platform in $(WHEELS); do ATTSVM_PLATFORM=$$platform $(BIN)/python -m build --no-isolation --wheel --outdir dist || exit 1; done
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m auditwheel show dist/attsvm-*-manylinux2014_x86_64.whl
	$(BIN)/python release/check_wheels.py dist

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/first_call.py
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/train.py
	$(BIN)/python benchmarks/solve_batch.py
	$(BIN)/python benchmarks/path.py

clean:
	rm -rf $(VENV) $(VENV)-oldest docs/_build build dist
