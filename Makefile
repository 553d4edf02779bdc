# make demo   GGEUR on handwritten digits through Flower's simulation, from nothing
# make demo-eeg   FedSPDnet on simulated recordings: ProjAvg, RLAvg, FedAvg without projection, EEGNet
# make check  lint, types and the unit tests: while you work, some three minutes
# make test   lint, types and all tests, as the continuous integration runs them: some 25 minutes on two cores
# make        the environment alone
PYTHON ?= python3
PY := .venv/bin/python
# three on two cores: much of the system tests is waiting for Flower's heartbeats
WORKERS ?= 3
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: install demo demo-eeg check test lint clean
install: .venv/.installed

.venv/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "fedgeo needs Python 3.11 or newer: make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --progress-bar off -e .
	@touch $@

.venv/.dev: .venv/.installed
	$(PY) -m pip install --quiet --progress-bar off -e '.[dev]'
	@touch $@

demo: .venv/.installed
	$(PY) scripts/run.py -m experiment=quickstart augmentation=none,repeat,ggeur

demo-eeg: .venv/.installed
	$(PY) scripts/run.py -m experiment=eeg_demo engine=inprocess method=projavg,rlavg,fedavg \
		--also 'method=fedavg model=eegnet'

lint: .venv/.dev
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m pytest -q tests/unit/test_import_order.py

check: lint
	$(PYTEST) tests/unit

test: lint
	HYPOTHESIS_PROFILE=ci $(PYTEST)

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .hypothesis
