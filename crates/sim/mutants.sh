#!/usr/bin/env bash
# usage: crates/sim/mutants.sh [MINUTES]
# Builds the simulator with defects to order (crates/core/src/mutants.rs), and runs seeds against each until one
# fails, for at most MINUTES (default 5). Prints the table of docs/reliability.md; fails if a mutant survives.
set -euo pipefail
cd "$(dirname "$0")/../.."
sim=${QUOIN_SIM:-}
if [ -z "$sim" ]; then
  cargo build --release -p quoin-sim --features mutants
  sim=target/release/quoin-sim
fi
survived=0
echo '| mutant | seed | found | in simulated seconds |'
echo '|---|---|---|---|'
for mutant in $(grep -rhoP 'mutants::is\("\K[a-z-]+' crates/*/src | sort -u); do
  out=$(QUOIN_MUTANT=$mutant "$sim" --seed 1 --minutes "${1:-5}" --seconds 20 2>&1) && { echo "| $mutant | none | | |"; survived=1; continue; }
  seed=$(grep -oP 'Error: seed \K[0-9]+' <<< "$out" | head -1)
  what=$(grep -oP 'simulated ms: \K.{1,110}' <<< "$out" | head -1)
  total=$(grep -oP 'seeds, \K[0-9]+' <<< "$out" | head -1)
  echo "| $mutant | $seed | $what | $total |"
done
exit $survived
