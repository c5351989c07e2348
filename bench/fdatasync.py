#!/usr/bin/env python3
"""Measures one fdatasync on this disk: appends of several sizes to a growing file, to one with preallocated
space, and to one that was written before. The three take turns, so that other load affects all of them.

Usage: bench/fdatasync.py [FOLDER] (a folder on the disk in question). Prints milliseconds: first quartile,
median and 99th percentile.
"""
import os
import sys
import tempfile
import time

ROUNDS = 600
KINDS = ("growing", "reserved", "written before")


def prepared(folder, size, kind):
    file, path = tempfile.mkstemp(dir=folder)
    os.unlink(path)
    if kind != "growing":
        os.posix_fallocate(file, 0, ROUNDS * size)
    if kind == "written before":
        os.pwrite(file, b"\0" * (ROUNDS * size), 0)
    os.fsync(file)
    return file


folder = sys.argv[1] if len(sys.argv) > 1 else "."
for size in (1 << 10, 64 << 10, 256 << 10):
    files = [prepared(folder, size, kind) for kind in KINDS]
    times = [[] for _ in KINDS]
    for number in range(ROUNDS):
        for file, own in zip(files, times):
            begun = time.perf_counter()
            os.pwrite(file, b"x" * size, number * size)
            os.fdatasync(file)
            own.append((time.perf_counter() - begun) * 1e3)
    for kind, file, own in zip(KINDS, files, times):
        os.close(file)
        own.sort()
        quartile, median, p99 = (own[ROUNDS * share // 100] for share in (25, 50, 99))
        print(f"{size >> 10:4} KiB, {kind:15} {quartile:7.2f} {median:7.2f} {p99:7.2f}", flush=True)
