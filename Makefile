# Begin with `make demo` and `make test`. What needs a server, Ruby or Python installs it first; see scripts/setup.

CARGO ?= cargo
# The benches are a package of their own, built into the same folder.
BENCH = --manifest-path benches/Cargo.toml --target-dir $(TARGET)

PART ?= 1/1
# A package that fails ends no other, and cargo names all that failed at the end.
TEST = $(CARGO) test --no-fail-fast --features tls-rustls,macros
TARGET = $(or $(CARGO_TARGET_DIR),target)
PREFIX ?= /usr/local

.PHONY: help demo demo-failover demo-quorum demo-ruby stress simulate scale mutants-planted test test-build test-all faults steady check test-servers test-server proxy doctor manual install dist dist-check golden bench bench-gate bench-check setup fmt clippy docs words deny package msrv fresh clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what is missing for demos and tests: redis-server, ruby with its Redis client
	@scripts/setup redis-server ruby ruby-redis

demo: ## several processes contend for one lock, and one is killed: prints a table, draws a timeline
	@[ -n "$$REDIS_URL" ] || scripts/setup redis-server
	@$(CARGO) run --package setnx-lock-demo -- $(ARGS)

demo-failover: ## the same, with the server killed: a master with replicas and Sentinels
	@scripts/setup redis-server
	@$(CARGO) run --package setnx-lock-demo -- --failover --for 12s $(ARGS)

demo-quorum: ## four threads share a lock on three servers, which are killed one after the other (ARGS=measure: the time of an acquisition)
	@scripts/setup redis-server
	@$(CARGO) run --release --package setnx-lock-quorum -- $(ARGS)

demo-ruby: ## a Ruby class and the same class in Rust contend for one lock (ARGS="--for 10s --threads 1")
	@scripts/setup ruby ruby-redis
	@[ -n "$$REDIS_URL" ] || scripts/setup redis-server
	@$(CARGO) run --package setnx-lock-ruby -- $(ARGS)

test-servers: ## run the tests of locks, and of Ruby beside them, on your servers: make test-servers URLS="redis://old:6379 redis://older:6379"
	@[ -n "$(URLS)" ] || { echo 'name the servers: make test-servers URLS="redis://127.0.0.1:6379"' >&2; exit 1; }
	@scripts/setup redis-server ruby ruby-redis
	@SETNX_LOCK_TEST_URLS="$(URLS)" $(CARGO) test --test suite ::url -- --include-ignored

stress: ## search for two valid leases at once, with killed processes and a slow network (ARGS="--only gem --acquisitions 5000")
	@scripts/setup redis-server
	@$(CARGO) run --release --package setnx-lock-stress -- $(ARGS)

simulate: ## search for a seed of a simulated fleet that breaks a law (ARGS="--for 10min --clients 1000", "--seed 7 --trace")
	@$(CARGO) run --release --package setnx-lock-simulate -- $(ARGS)

scale: ## measure how fleets of 10 to 4,000 workers load a server, in simulated time, and draw docs/images/scale-*.svg (some minutes)
	@$(CARGO) run --release --package setnx-lock-simulate -- --scale

mutants-planted: ## make mistakes in a copy of the library, one after the other: a seed of the simulation must show each (ARGS="budget nil")
	@$(CARGO) run --package setnx-lock-simulate -- --planted $(ARGS)

test: setup ## run the tests, each statement in a sample of its variants (ARGS=--times prints the slowest)
	@SETNX_LOCK_TEST_ARGS="$(ARGS)" $(TEST)

test-build: setup ## build the tests
	@$(TEST) --no-run

test-all: setup ## run each test in each variant, model checkers and searches for longer; PART=2/4 runs the second of four parts
	@scripts/setup faketime
	SETNX_LOCK_TEST_PART=$(PART) SETNX_LOCK_MODEL_ITERATIONS=1000 SETNX_LOCK_SEARCH_RUNS=20 SETNX_LOCK_SIMULATE_SECONDS=120 SETNX_LOCK_SIMULATE_SEEDS=64 SETNX_LOCK_TEST_ARGS="--include-ignored $(ARGS)" $(TEST)

faults: setup ## send ten million commands over connections that are killed, to a server that stops, on keys that are overwritten (COMMANDS=1000000)
	SETNX_LOCK_FAULT_COMMANDS=$(or $(COMMANDS),10000000) $(CARGO) test --release --features tls-rustls,macros --test suite shared_connections

steady: ## run the tests beside busy loops, and beside a second copy of themselves, five times each (RUNS=1)
	@scripts/steady

check: fmt clippy docs ## check the formatting, clippy and the documentation

fmt: ## check the formatting
	$(CARGO) fmt --all --check
	$(CARGO) fmt --check --manifest-path benches/Cargo.toml

clippy: ## run clippy
	$(CARGO) clippy --workspace --exclude setnx-lock-simulated --all-targets --features tls-rustls,macros -- -D warnings
	$(CARGO) clippy --package setnx-lock-simulated -- -D warnings
	$(CARGO) clippy --package setnx-lock --lib -- -D warnings

docs: ## build the crate's documentation, without warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --package setnx-lock --package setnx-lock-fork --package setnx-lock-macros --package setnx-lock-proto --package setnx-lock-testing --no-deps --features tls-rustls,macros

words: ## count the words of the documents: README at most 900, the pages for users 15,000, those for maintainers 6,000
	@wc -w README.md CHANGELOG.md SECURITY.md CONTRIBUTING.md proto/README.md testing/README.md testing/src/real_servers.md contrib/README.md | sed '$$d'
	@echo '-- for users'; wc -w $(PAGES)
	@echo '-- for maintainers'; wc -w docs/internals.md compat/README.md benches/README.md

PAGES = $(addprefix docs/,$(addsuffix .md,guide several limits from-ruby operations servers scale cli comparison))

test-server: ## start a server that behaves like an old version, for your programs to try: make test-server VERSION=2.4 ARGS="--port 6380"
	@$(CARGO) run --package setnx-lock-testing -- $(VERSION) $(ARGS)

proxy: test-server

doctor: ## report what a server can do for locks, and what may harm them there: make doctor URL=redis://127.0.0.1/
	@$(CARGO) run --quiet --package setnx-lock-cli -- doctor $(if $(URL),"$(URL)")

# Those that have a page of their own.
COMMANDS = run acquire extend release status list clear watch fence doctor key man completions

manual: ## write the tool's man pages and shell completions to target/man and target/completions
	@$(CARGO) build --quiet --package setnx-lock-cli
	@mkdir -p "$(TARGET)/man" "$(TARGET)/completions"
	@set -e; tool="$(TARGET)/debug/setnx-lock"; "$$tool" man >"$(TARGET)/man/setnx-lock.1"; \
	    for command in $(COMMANDS); do "$$tool" man $$command >"$(TARGET)/man/setnx-lock-$$command.1"; done; \
	    "$$tool" completions bash >"$(TARGET)/completions/setnx-lock.bash"; \
	    "$$tool" completions zsh >"$(TARGET)/completions/_setnx-lock"; \
	    "$$tool" completions fish >"$(TARGET)/completions/setnx-lock.fish"
	@echo "wrote $(TARGET)/man and $(TARGET)/completions"

install: manual ## install the tool, its man pages and its completions: make install PREFIX=/usr/local DESTDIR=
	@$(CARGO) build --release --package setnx-lock-cli
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/share/man/man1" \
	    "$(DESTDIR)$(PREFIX)/share/bash-completion/completions" "$(DESTDIR)$(PREFIX)/share/zsh/site-functions" \
	    "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d"
	install -m 755 "$(TARGET)/release/setnx-lock" "$(DESTDIR)$(PREFIX)/bin/setnx-lock"
	install -m 644 "$(TARGET)"/man/setnx-lock*.1 "$(DESTDIR)$(PREFIX)/share/man/man1"
	install -m 644 "$(TARGET)/completions/setnx-lock.bash" "$(DESTDIR)$(PREFIX)/share/bash-completion/completions/setnx-lock"
	install -m 644 "$(TARGET)/completions/_setnx-lock" "$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_setnx-lock"
	install -m 644 "$(TARGET)/completions/setnx-lock.fish" "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/setnx-lock.fish"

dist: ## build a static binary, an archive with man pages and completions, and a Debian package: target/dist-files
	@scripts/dist

dist-check: ## try what `make dist` has made: alone in an empty folder, installed, and in a container if there is docker
	@scripts/dist --check

golden: ## rewrite the files in compat/golden by Ruby, and show the changes
	@scripts/setup ruby ruby-redis
	@env -u REDIS_OBJECTS_LIB -u REDIS_OBJECTS_VERSION ruby compat/ruby/golden.rb compat/golden
	@git --no-pager diff --stat -p -- compat/golden

bench: ## compare locks with raw commands and other libraries: tables and plots in target/bench (QUICK=1 for a short run)
	@scripts/setup redis-server
	@scripts/setup ruby ruby-redis || true # without it the run leaves the gem out, with a message
	@scripts/setup python3 python3-venv && benches/peers/setup target/bench/venv || true # and redis-py
	@$(CARGO) build --release --package setnx-lock-cli
	@$(CARGO) run --release $(BENCH) -- $(if $(QUICK),--quick) $(ARGS)

bench-gate: ## count what a pair costs, and fail where it is a hundredth more than benches/gate.toml says (UPDATE=1 writes the file)
	@scripts/setup redis-server valgrind
	@$(CARGO) run --quiet --release --package setnx-lock-gate -- $(if $(UPDATE),--update)

bench-check: ## run clippy and the tests of the benches
	$(CARGO) clippy $(BENCH) --all-targets -- -D warnings
	$(CARGO) test $(BENCH)

package: ## build each crate that is published from what is published of it
	@# In a folder of its own: cargo would take a crate of the same version from an earlier run.
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; $(CARGO) publish --workspace --dry-run --locked --target-dir "$$folder" $(ARGS)

deny: ## check licences, duplicates and advisories of the dependencies (needs cargo-deny)
	cargo deny check

OLDEST = $$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

msrv: ## build the library, the tool and the server for tests with the oldest Rust they support (needs rustup)
	rustup toolchain install $(OLDEST) --profile minimal
	cargo +$(OLDEST) check --target-dir $(TARGET)/oldest --package setnx-lock --package setnx-lock-cli --package setnx-lock-testing --features setnx-lock/macros

fresh: ## build a copy without the lock file, as a new project does (RUST=1.88: by that Rust, with the versions that README.md pins)
	rm -rf $(TARGET)/fresh && mkdir -p $(TARGET)/fresh
	git archive HEAD | tar -x -C $(TARGET)/fresh --exclude=Cargo.lock
	cd $(TARGET)/fresh && $(if $(RUST),$$(sed -n 's/^\(cargo update scheduled-thread-pool --precise [^ ]*\).*/\1/p' README.md) &&) \
	    $(CARGO) $(if $(RUST),+$(RUST)) check --package setnx-lock --package setnx-lock-cli --features tls-rustls,macros --target-dir build

clean: ## remove the build
	$(CARGO) clean
