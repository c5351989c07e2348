#!/usr/bin/env bash
# kube-apiserver 1.37 on three replicas of Quoin, and on three etcd 3.7 for comparison, all from the Go module proxy: namespaces,
# custom resources, thousands of objects, watches with bookmarks, lists; the leader is killed meanwhile, and the watches must
# have told each change once. Prints figures. The first build takes a quarter of an hour, so no part of .ci/run.
# usage: tests/compat/kubernetes/run.sh [quoin|etcd]     QUOIN_BIN and OBJECTS (5000) from the environment
set -euo pipefail
cd "$(dirname "$0")/../../.."
export QUOIN_BIN=${QUOIN_BIN:-$PWD/target/release/quoin} PYTHONPATH=tests/compat
export KUBERNETES_BIN=$PWD/target/kubernetes
mkdir -p "$KUBERNETES_BIN"
stamp=k8s.io/component-base/version
version=$(cd tests/compat/kubernetes && go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}
(cd tests/compat/kubernetes &&
    nice go build -p 2 -trimpath -ldflags "-s -w -X $stamp.gitMajor=1 -X $stamp.gitMinor=${minor%%.*} -X $stamp.gitVersion=$version" \
        -o "$KUBERNETES_BIN/" k8s.io/kubernetes/cmd/kube-apiserver &&
    nice go build -p 2 -trimpath -ldflags "-s -w" -o "$KUBERNETES_BIN/etcd" go.etcd.io/etcd/server/v3)
exec python3 tests/compat/kubernetes/exercise.py ${1:-quoin etcd}
