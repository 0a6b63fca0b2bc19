# The two commands: `make demo` and `make test`. Each installs what it needs first; see scripts/setup.

CARGO ?= cargo
# The benches are a package of their own, built beside the library.
BENCH = --manifest-path benches/Cargo.toml --target-dir $${CARGO_TARGET_DIR:-target}

.PHONY: help demo demo-ruby stress test test-servers proxy server golden bench bench-check setup fmt clippy docs deny msrv clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what demos and tests need (redis-server, ruby with its Redis client, faketime), where it is missing
	@scripts/setup redis-server ruby ruby-redis faketime

demo: ## several processes contend for one lock, one is killed: a table and a picture
	@[ -n "$$REDIS_URL" ] || scripts/setup redis-server
	@$(CARGO) run --release --example demo -- $(ARGS)

demo-ruby: ## a class of Ruby and its twin in Rust: the same keys, and both contending for one lock (ARGS="--for 10s")
	@scripts/setup ruby ruby-redis
	@[ -n "$$REDIS_URL" ] || scripts/setup redis-server
	@$(CARGO) run --release --example twin -- $(ARGS)

test-servers: ## what a lock does, and Ruby beside it, on servers of your own: make test-servers URLS="redis://old:6379 redis://older:6379"
	@[ -n "$(URLS)" ] || { echo 'say which: make test-servers URLS="redis://127.0.0.1:6379"' >&2; exit 1; }
	@scripts/setup redis-server ruby ruby-redis
	@SETNX_LOCK_TEST_URLS="$(URLS)" $(CARGO) test --test suite ::url

stress: ## processes that are killed, a network with delays: are there ever two leases at once? (ARGS="--only gem --acquisitions 5000")
	@scripts/setup redis-server
	@$(CARGO) run --release --example stress -- $(ARGS)

test: setup fmt clippy docs ## formatting, clippy, docs without warnings, all tests
	$(CARGO) test --features tls-rustls

fmt:
	$(CARGO) fmt --check
	$(CARGO) fmt --check --manifest-path benches/Cargo.toml

clippy:
	$(CARGO) clippy --all-targets --features tls-rustls -- -D warnings
	$(CARGO) clippy --lib -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --features tls-rustls

proxy: ## a current server that looks like an old one, for your own programs to try: make proxy VERSION=2.4
	@scripts/setup redis-server
	@$(CARGO) run --quiet --release --example proxy -- $(VERSION) $(ARGS)

server: ## tell what a server can do for locks, and what may go wrong there: make server URL=redis://127.0.0.1/
	@$(CARGO) run --quiet --example server -- $(if $(URL),"$(URL)")

golden: ## make the files in compat/golden anew, and show what changed
	@scripts/setup ruby ruby-redis
	@ruby compat/ruby/golden.rb compat/golden
	@git --no-pager diff --stat -p -- compat/golden

bench: ## measure locks beside raw commands and other libraries: tables and plots in target/bench (QUICK=1 for a short run)
	@scripts/setup redis-server
	@scripts/setup ruby ruby-redis || true # without it the run leaves the gem out, and says so
	@scripts/setup python3 python3-venv && benches/peers/setup target/bench/venv || true # and redis-py
	@$(CARGO) run --release $(BENCH) -- $(if $(QUICK),--quick) $(ARGS)

bench-check: ## clippy and the tests of the benches, which are a package of their own
	$(CARGO) clippy $(BENCH) --all-targets -- -D warnings
	$(CARGO) test $(BENCH)

deny: ## licences, duplicates and advisories of the dependencies (needs cargo-deny)
	cargo deny check

msrv: ## build the library with the oldest Rust it supports (needs rustup and that toolchain)
	cargo +$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) check --lib

clean: ## remove what was built
	$(CARGO) clean
