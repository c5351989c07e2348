"""Runs etcd's own tests against Quoin, each in a process of its own: after one that failed, etcd's others do not start.

Each test that is known not to pass is in a list, with the reason. Anything else that fails is an error, and so is a test of
the list that passes.
"""

import os
import re
import subprocess
import sys
from collections import Counter

PATIENCE_S = 300
RESULT = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+)", re.M)


def known(path):
    """Names of tests and why they do not pass: a name stands for its cases too."""
    reasons = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            name, _, reason = line.strip().partition("  ")
            if name and not name.startswith("#"):
                reasons[name] = reason.strip()
    return reasons


def leaves(results):
    """Results of tests that have no cases of their own."""
    return {name: how for name, how in results.items() if not any(other.startswith(name + "/") for other in results)}


def run(program, flags, test, log):
    """What became of a test's cases."""
    command = [program, "-test.v", f"-test.timeout={PATIENCE_S}s", "-test.run", f"^{test}$", *flags]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    log.write(done.stdout + done.stderr)
    results = {name: how for how, name in RESULT.findall(done.stdout)}
    if done.returncode != 0 and "FAIL" not in results.values():
        results = {**dict.fromkeys(re.findall(r"^=== RUN\s+(\S+)", done.stdout, re.M), "FAIL"), test: "FAIL"}
    return leaves(results)


def main(program, listed, place, only, *flags):
    """Runs the tests of a program in the folder of their sources."""
    reasons = known(listed)
    os.chdir(place)
    names = subprocess.run([program, "-test.list", only], capture_output=True, text=True, check=True).stdout.split()
    count, wrong, seen = Counter(), [], set()
    with open(f"{program}.log", "w", encoding="utf-8") as log:
        for test in (name for name in names if name.startswith("Test")):
            for name, how in run(program, flags, test, log).items():
                reason = next((reasons[at] for at in (name, test) if at in reasons), None)
                seen.update(at for at in (name, test) if at in reasons and how != "PASS")
                count[how] += 1
                if how == "FAIL" and reason is None:
                    wrong.append(name)
                print(f"{how} {name}" + (f"  ({reason})" if how == "FAIL" and reason else ""), flush=True)
    print(f"{sum(count.values())} cases: {dict(count)}")
    ran = [name for name in reasons if name.split("/")[0] in names]
    stale = [name for name in ran if name not in seen]
    if wrong:
        print("failed, and not listed:", *wrong, sep="\n  ")
    if stale:
        print("listed, and passed:", *stale, sep="\n  ")
    return 1 if wrong or stale else 0


sys.exit(main(*sys.argv[1:]))
