#!/usr/bin/env bash
# etcd's own tests on Quoin: all of tests/common and a part of tests/e2e of etcd 3.6, with its etcdctl, from the Go module proxy.
# Takes about half an hour, so no part of .ci/run. usage: tests/compat/etcd/run.sh [common|e2e]     QUOIN_BIN from the environment
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=$PWD/tests/compat/etcd
built=$PWD/target/etcd-tests
mkdir -p "$built/bin"
cp "${QUOIN_BIN:-$PWD/target/release/quoin}" "$built/bin/quoin"
cd "$here"
go build -o "$built/bin" ./etcd go.etcd.io/etcd/etcdctl/v3 go.etcd.io/etcd/etcdutl/v3
sources=$(go list -m -f '{{.Dir}}' go.etcd.io/etcd/tests/v3)
# What an etcd and Quoin have in common; not its files, discovery, proxies, versions, and what it logs.
e2e='^(TestConnectionMultiplexing|TestCtlV3(Serializable|Linearizable|Elect|Put|GetTimeout|GetFormat|GetRev|GetMin|GetKeys|GetCount|Del|Lease|Lock|MakeMirror|MemberList|MemberAdd|MemberUpdate|Consistent|MoveLeader|Snapshot|Version|Dial|Watch)|TestMemberReplace|TestRemoveNon|TestIssue6361|TestClusterVersion|TestHTTP|TestGateway|TestGracefulShutdown|TestV3Metrics|TestRuntimeReconfig|TestCurlV3(Cluster|Campaign|Proclaim|Resign|Election|KV|Lease|Lock|Maintenance|Watch)|TestCurlWatch|TestLeaseRevoke|TestWatchDelay|TestDeleteEventDrop|TestStartWatcher|TestResumeCompaction)'
failed=0
for part in ${1:-common e2e}; do
    go test -tags e2e -c -o "$built/$part.test" "go.etcd.io/etcd/tests/v3/$part"
    chosen=.
    [ "$part" = e2e ] && chosen=$e2e
    python3 run.py "$built/$part.test" "$here/$part.txt" "$sources/$part" "$chosen" -bin-dir "$built/bin" -cert-dir "$sources/fixtures" || failed=1
done
exit $failed
