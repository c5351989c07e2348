# What the comparisons share: free ports, and waiting until a server is ready. To be sourced.

# Prints the first of COUNT consecutive ports that are free now, below those that outgoing connections take.
free_ports() { # COUNT
    python3 - "$1" "$$" <<'PY'
import socket, sys
count, process = map(int, sys.argv[1:])
bases = list(range(12000, 20000, 50))
for base in bases[process % len(bases):] + bases[:process % len(bases)]:
    try:
        for port in range(base, base + count):
            with socket.socket() as one:
                one.bind(("127.0.0.1", port))
    except OSError:
        continue
    print(base)
    break
else:
    sys.exit(f"no {count} consecutive ports from 12000 to 20000 are free")
PY
}

# Repeats a command until it succeeds: a minute at most, and no longer than the process lives.
await() { # PROCESS WHAT COMMAND...
    local process=$1 what=$2 end=$((SECONDS + 60))
    until "${@:3}" >/dev/null 2>&1; do
        kill -0 "$process" 2>/dev/null || { echo "$what has ended" >&2; return 1; }
        [ "$SECONDS" -lt "$end" ] || { echo "$what is not ready after a minute" >&2; return 1; }
        sleep 0.1
    done
}

# Prints the processor's time so far that was idle, that other machines took, and all of it.
machine() { awk '/^cpu /{print $5, $9, $2+$3+$4+$5+$6+$7+$8+$9}' /proc/stat; }

# Whether a server answers a line with one that contains a word.
says() { # PORT LINE WORD
    local answer
    { exec 3<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null || return 1
    printf '%b' "$2" >&3
    answer=$(timeout 2 cat <&3 || true)
    exec 3<&- 3>&-
    [[ $answer == *$3* ]]
}
