# Tessera. `make` lists what there is; `make run` and `make test` do all their set-up themselves.
#
# The environment lies in .venv. A stamp there holds the checksum of pyproject.toml: as long as it matches, pip is
# not called, so that everything works with no network once installed. Written for GNU make 3.81 (macOS) and sh.

PYTHON ?= python3
DIR ?= .
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
VERSIONS := 3.11 3.12 3.13 3.14
COVERAGE_DATA := $(CURDIR)/.coverage-data
SKIPS := $(CURDIR)/.test-skips
EVIDENCE := $(CURDIR)/.test-evidence
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq

# What counts as installed: the content of pyproject.toml, and the place, since an editable install holds paths.
key = $$(cksum < pyproject.toml) $(CURDIR)
say = printf '==> %s\n'

.DEFAULT_GOAL := help
.PHONY: help run test test-all lint lint-imports lint-versions lint-wheels format docs clean install-run install-test

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: install-run ## real work on the files of a folder: make run [DIR=/some/folder] [DEMO_ONCE=1]
	@$(say) "tessera demo $(DIR)"
	@$(BIN)/tessera demo "$(DIR)"

test: install-test lint ## the whole suite: format, lint, types, layers, tests, coverage
	@rm -rf "$(COVERAGE_DATA)" "$(SKIPS)" "$(EVIDENCE)" && mkdir -p "$(COVERAGE_DATA)"
	@$(say) 'tests, $(WORKERS) at a time, measured'
	@COVERAGE_FILE="$(COVERAGE_DATA)/run" TESSERA_TEST_SKIPS="$(SKIPS)" TESSERA_TEST_EVIDENCE="$(EVIDENCE)" \
	    $(BIN)/coverage run -m pytest -q -n $(WORKERS) -m 'not serial'
	@$(say) 'serial checks, alone and unmeasured'
	@TESSERA_TEST_SKIPS="$(SKIPS)" TESSERA_TEST_EVIDENCE="$(EVIDENCE)" $(BIN)/python -m pytest -q -m serial
	@$(say) 'the capability table says what these tests showed'
	@$(BIN)/python docs/generate_capabilities.py --check
	@$(say) 'branch coverage: at least 98 % of rules, 92 % of the rest'
	@COVERAGE_FILE="$(COVERAGE_DATA)/run" $(BIN)/coverage combine --quiet
	@COVERAGE_FILE="$(COVERAGE_DATA)/run" $(BIN)/coverage report --include='src/tessera/rules/*' --fail-under=98
	@COVERAGE_FILE="$(COVERAGE_DATA)/run" $(BIN)/coverage report --omit='src/tessera/rules/*' --fail-under=92
	@$(say) 'everything passed; what was skipped:'
	@$(BIN)/python -m tests.skip_report "$(SKIPS)"

test-all: export TESSERA_TEST_INSTALL := 1
test-all: test ## the same, and missing servers may be installed from the system's packages

lint: install-test ## format check, lint, types, layers
	@$(say) 'ruff format --check' && $(BIN)/ruff format --check --quiet .
	@$(say) 'ruff check' && $(BIN)/ruff check --quiet .
	@$(say) 'mypy' && $(BIN)/mypy --no-error-summary
	@$(say) 'lint-imports' && $(BIN)/lint-imports --no-logo

lint-imports: install-test ## the layers: who may import whom
	@$(BIN)/lint-imports --no-logo

lint-versions: install-test ## types and syntax for every Python version that the distribution claims
	@set -e; for version in $(VERSIONS); do \
	    $(say) "mypy and ruff for Python $$version"; \
	    $(BIN)/mypy --no-error-summary --python-version $$version; \
	    $(BIN)/ruff check --quiet --target-version py$$(echo $$version | tr -d .) --extend-ignore UP,FURB .; \
	done

lint-wheels: install-test ## wheels of every dependency for every Python version (asks the package index)
	@set -e; for version in $(VERSIONS); do \
	    $(say) "wheels for Python $$version"; \
	    $(PIP) install --dry-run --ignore-installed --only-binary=:all: --target $(VENV)/none \
	        --python-version $$version $$($(BIN)/python -c "$$DEPENDENCIES"); \
	done

format: install-test ## format and mend what can be mended
	@$(BIN)/ruff check --quiet --fix-only . && $(BIN)/ruff format .

docs: install-test ## write the generated pages anew
	@$(say) 'generated pages'
	@set -e; found=; for page in docs/generate*.py; do \
	    test -f "$$page" || continue; found=1; $(say) "$$page"; $(BIN)/python "$$page"; \
	done; test -n "$$found" || $(say) 'none yet'

clean: ## remove caches, builds and measurements; .venv stays (rm -r .venv)
	@rm -rf .coverage* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .test-skips .test-evidence build dist
	@find . -name .venv -prune -o -name .git -prune -o -name __pycache__ -type d -print | xargs rm -rf
	@$(say) 'clean'

# ---------------------------------------------------------------- set-up

# $(1) stamps, any of which will do; $(2) the stamp to write; $(3) what pip installs
define install
	@current=; for stamp in $(1); do \
	    if [ "$$(cat $(VENV)/$$stamp 2>/dev/null)" = "$(key)" ]; then current=1; fi; \
	done; \
	if [ -n "$$current" ] && $(BIN)/python -c '' 2>/dev/null; then \
	    $(say) '$(VENV) is up to date'; \
	else \
	    set -e; \
	    $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	        echo "Tessera needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
	        echo "Name another one: make $(firstword $(MAKECMDGOALS)) PYTHON=/path/to/python3.11" >&2; exit 1; }; \
	    $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	        $(say) "make $(VENV) with $$($(PYTHON) --version)"; \
	        $(PYTHON) -m venv --clear $(VENV) || { \
	            echo "No venv; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }; }; \
	    $(say) 'install $(3) into $(VENV)'; \
	    $(PIP) install 'pip>=25.1'; \
	    $(PIP) install $(3); \
	    printf '%s\n' "$(key)" > $(VENV)/$(2); \
	fi
endef

install-run:
	$(call install,.installed-run .installed-test,.installed-run,--editable .[cli])

install-test:
	$(call install,.installed-test,.installed-test,--editable .[all] --group dev)

# The names of all dependencies, with their bounds, from the project file.
define DEPENDENCIES
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = [name for wanted, names in project["optional-dependencies"].items() if wanted != "all" for name in names]
print(*(one.replace(" ", "").partition(";")[0] for one in project["dependencies"] + extras))
endef
export DEPENDENCIES
