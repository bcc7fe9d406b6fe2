# make install, run and test are the README's; lint checks, format mends, site makes the documents
# a site, pictures the README's, load and bench print figures, dist a release, clean starts anew.
PYTHON ?= python3
VENV   ?= .venv
HOST   ?= 127.0.0.1
PORT   ?= 8080

JOBS     ?= $(shell nproc)
# No more than there are processors: tests start servers, and a third process made none of it faster on two.
TESTERS  ?= $(JOBS)

BIN      := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TOOLS    := $(VENV)/.tools
CLIENTS  := $(VENV)/clients/.installed
LIBLLAMA := $(VENV)/.libllama
# setuptools warns of every editable installation, and pip shows it.
EDITABLE := PYTHONWARNINGS="ignore:Editable installation" $(BIN)/python -m pip install --quiet \
            --disable-pip-version-check --no-build-isolation --editable
NATIVE   := $(wildcard native/src/*/* native/include/* native/*.py)
CLANGFMT := $(BIN)/clang-format
CXXFILES := $(wildcard native/src/*/*.cpp native/src/*/*.h native/include/*.h tests/native/*.cpp tests/native/*.h \
             tests/native/*/*.cpp tests/native/*/*.h)

# Each server that tests start would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install run test lint format site pictures load bench dist fuzz clean FORCE

install: $(INSTALLED)

run: $(INSTALLED)
	$(BIN)/corosrv serve --host $(HOST) --port $(PORT) --prompt-embeds 1

# The tests of one file run one after the other, files side by side. A native test that cannot be built here fails,
# or is skipped, in its turn and says why.
test: $(TOOLS) $(CLIENTS)
	@echo "corosrv: building the native tests under sanitizers (about 6 minutes on 2 cores, the first time)"
	-@$(MAKE) --silent --keep-going --jobs $(JOBS) -C tests/native thread address oracle fuzz world
	-@$(BIN)/python -m tests.support.llama_templates
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadfile --no-loadscope-reorder $(PYTEST)

lint: $(TOOLS)
	$(BIN)/ruff format --check corosrv docs native benchmarks tests setup.py
	$(BIN)/ruff check corosrv docs native benchmarks tests setup.py
	$(BIN)/mypy
	$(CLANGFMT) --dry-run --Werror $(CXXFILES)

format: $(TOOLS)
	$(BIN)/ruff check --fix-only --quiet corosrv docs native benchmarks tests setup.py
	$(BIN)/ruff format corosrv docs native benchmarks tests setup.py
	$(CLANGFMT) -i $(CXXFILES)

# The documents as a site, in site/.
site: $(TOOLS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

# The README's pictures, in docs/pictures/: the page and its live view in Chromium, and a recording of a terminal.
pictures: $(TOOLS)
	$(BIN)/python -m tests.pictures

# Figures of docs/guide/figures.md: open streams, stalled ones and a storm of clients on the synthetic model,
# clients that leave on the real one, predictions through a worker process.
load: $(TOOLS)
	$(BIN)/python -m tests.load.streams
	$(BIN)/python -m tests.load.chats
	$(BIN)/python -m tests.load.stalled
	$(BIN)/python -m tests.load.storm
	$(BIN)/python -m tests.load.disconnects
	$(BIN)/python -m tests.load.predictor_process
	$(BIN)/python -m tests.load.predictions
	$(BIN)/python -m tests.load.predictor_faults
	$(BIN)/python -m tests.load.upstream_faults
	$(BIN)/python -m tests.load.upstream_permits
	$(BIN)/python -m tests.load.upstream_streams
	$(BIN)/python -m tests.load.upstream_chats
	$(BIN)/python -m tests.load.forwarding_cost
	$(BIN)/python -m tests.load.shared_prompts

# Side by side with llama-server: the tables and plots in benchmarks/. ROUNDS=1 QUICK=1 for a first look.
bench: $(TOOLS)
	$(BIN)/python -m benchmarks.side_by_side $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(QUICK),--quick)
	$(BIN)/python -m benchmarks.formats $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(QUICK),--rounds 1 --formats Q4_K_M)

# A release in dist/: the source, and a wheel with libllama inside, which each supported Python at hand tries in an
# environment of its own, without a compiler.
dist: $(TOOLS)
	rm -rf dist
	$(BIN)/python -m build --no-isolation --sdist --wheel --outdir dist
	$(BIN)/python native/bundle.py dist
	$(BIN)/python -m tests.wheels dist

# Other people's clients, for the tests, where they cannot share an environment with the newest openai.
$(CLIENTS): tests/clients/requirements.txt
	$(PYTHON) -m venv $(VENV)/clients
	$(VENV)/clients/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

# Fuzzes the native core's readers, text and sampler: SECONDS=n for each, one when not said.
fuzz: $(INSTALLED)
	$(MAKE) -C tests/native fuzz
	$(MAKE) -C tests/native run-fuzz $(if $(SECONDS),SECONDS=$(SECONDS))

clean:
	rm -rf $(VENV) build dist *.egg-info corosrv/_native*.so tests/native/build

# What everything else stands on: libllama takes minutes to compile, and is kept as long as its version and options are.
# CMAKE_ARGS chooses devices (docs/guide/models.md), and is remembered for the next time.
$(LIBLLAMA): native/libllama.py native/libllama.cmake native/amx_flags.sh native/prerequisites.sh native/libllama-version \
             native/environment.sh
	PYTHON=$(PYTHON) sh native/prerequisites.sh
	sh native/environment.sh $(PYTHON) $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip "setuptools>=77" "cffi>=2"
	$(BIN)/python native/libllama.py $@

ifneq ($(origin CMAKE_ARGS),undefined)
$(LIBLLAMA): FORCE
endif

# What the server needs.
$(INSTALLED): $(LIBLLAMA) $(NATIVE) setup.py setup.cfg pyproject.toml
	@echo "corosrv: building the native core and installing the rest (about a minute, the first time)"
	$(EDITABLE) ".[smollm2]"
	touch $@

# What tests, lint and measurements need beside it.
$(TOOLS): setup.cfg | $(INSTALLED)
	@echo "corosrv: installing what the tests need"
	$(EDITABLE) ".[smollm2,test]"
	touch $@
