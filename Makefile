# check changes no file; fix rewrites.
.PHONY: check fix bench

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
