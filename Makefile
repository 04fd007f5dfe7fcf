# Every target works on a fresh machine with Python 3.11+, gcc and make.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test check lint fast-tests bench bench-client clean
demo: $(INSTALLED)
	$(BIN)/tokenswarm demo

test: $(INSTALLED)
	$(BIN)/python -m pytest tests

check: $(INSTALLED)
	$(MAKE) --no-print-directory --jobs 2 --output-sync lint fast-tests

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

fast-tests: $(INSTALLED)
	$(BIN)/python -m pytest -q tests/unit tests/contract -m "not slow"

bench-client: $(INSTALLED)
	$(BIN)/python benchmarks/bench_client.py

bench: $(INSTALLED)
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

# A current pip unpacks this stack several times as fast as the one Python ships with. Byte code is compiled on all
# cores afterwards, but for what is rarely imported.
$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --upgrade pip
	$(BIN)/python -m pip install -qq --no-compile --editable '.[dev]'
	$(BIN)/python -m compileall -q -j 0 -x '/(tests?|testing|models|rllib|tune|train|_inductor)/' .venv/lib >/dev/null || true
	touch $@

clean:
	rm -rf .venv build *.egg-info
