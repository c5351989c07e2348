# check changes no file; fix rewrites.
.PHONY: check fix bench sim mutants faults

check:
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	cargo test --workspace

fix:
	cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	cargo fmt --all

# Quoin and etcd, three replicas each, the same client, one run. Needs Go for etcd.
bench:
	cargo build --release
	bench/compare.sh

# Fresh seeds of the simulator: make sim MINUTES=360 JOBS=2, or the same ones again with SEED=1.
sim:
	cargo build --release -p quoin-sim
	target/release/quoin-sim --seed $(or $(SEED),$$(date +%s)000) --minutes $(or $(MINUTES),15) --jobs $(or $(JOBS),2)

# Defects that the simulator must find, each within so many minutes: the table of docs/reliability.md.
mutants:
	crates/sim/mutants.sh $(or $(MINUTES),5)

# Real nodes under faults. Needs root: see tests/faults/README.md.
faults:
	cargo build --release
	tests/faults/run.sh --minutes $(or $(MINUTES),15)
