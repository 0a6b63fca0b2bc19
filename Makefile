# The two commands: `make demo` and `make test`. Each installs what it needs first; see scripts/setup.

CARGO ?= cargo

.PHONY: help demo test bench setup fmt clippy docs check deny msrv clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what demo and tests need (redis-server), where it is missing
	@scripts/setup redis-server

demo: ## several processes contend for one lock, one is killed: a table and a picture
	@[ -n "$$REDIS_URL" ] || scripts/setup redis-server
	@$(CARGO) run --release --example demo -- $(ARGS)

test: setup fmt clippy docs ## formatting, clippy, docs without warnings, all tests
	$(CARGO) test --features tls-rustls

fmt:
	$(CARGO) fmt --check

clippy:
	$(CARGO) clippy --all-targets --features tls-rustls -- -D warnings
	$(CARGO) clippy --lib -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --features tls-rustls

bench: setup ## acquire and release against raw SETNX and DEL, interleaved
	@$(CARGO) bench --bench pairs -- $(ARGS)

deny: ## licences, duplicates and advisories of the dependencies (needs cargo-deny)
	cargo deny check

msrv: ## build the library with the oldest Rust it supports (needs rustup and that toolchain)
	cargo +$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) check --lib

clean: ## remove what was built
	$(CARGO) clean
