PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check

.PHONY: demo test test-avalanche docs lint format audit clean

demo: $(VENV)/digits             ## set up, then train seven ways on digits in four views; ends with a table and a page
	$(BIN)/forgetless demo

test: $(VENV)/installed          ## set up, then run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 10

test-avalanche: $(VENV)-avalanche/installed  ## the tests that need Avalanche, in an environment of its own
	OMP_NUM_THREADS=1 $(VENV)-avalanche/bin/python -m pytest tests/integrations/test_avalanche.py tests/test_pages.py -k 'avalanche or replay or online'

docs: $(VENV)/installed          ## the documentation as a site, in site/; a warning, a dead link too, is an error
	$(BIN)/zensical build --clean --strict

lint: $(VENV)/installed          ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

audit: $(VENV)/installed         ## known vulnerabilities of what is installed; needs the network
	$(PIP) --quiet pip-audit
	$(BIN)/pip-audit --skip-editable

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# pip says what it downloads, and how much. The largest is torch.
$(VENV)/digits: pyproject.toml constraints.txt
	@echo 'Setting up $(VENV): about 0.25 GB to download on Arm, several GB with CUDA on Linux x86 (README: CPU-only torch).'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt -e '.[digits]'
	@touch $@

$(VENV)/installed: pyproject.toml constraints.txt
	@echo 'Setting up $(VENV) with every optional library: about 0.5 GB to download on Arm, several GB with CUDA on Linux x86.'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt -e '.[test,docs]'
	@touch $@

# What the main environment has is used from there; torchvision asks for a torch with CUDA, so nothing is let ask.
$(VENV)-avalanche/installed: $(VENV)/installed tests/avalanche-requirements.txt
	$(PYTHON) -m venv $(VENV)-avalanche
	base=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
		own=$$($(VENV)-avalanche/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
		echo "import site; site.addsitedir('$$base')" > $$own/base.pth
	$(VENV)-avalanche/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/avalanche-requirements.txt
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-avalanche
