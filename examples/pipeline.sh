#!/bin/sh
# A shell pipeline that learns what a log looks like while it is written, and shows the lines that surprise it.
#
#     sh examples/pipeline.sh                          # a log that is made up here
#     tail -F app.log | sh examples/pipeline.sh -      # a log of your own
set -eu

NOREWIND=${NOREWIND:-norewind}
PYTHON=${PYTHON:-python3}
FOLDER=$(mktemp -d)
trap 'rm -rf "$FOLDER"' EXIT

# 2000 requests; one of the last ones is not like the others.
log() {
    if [ "${1:-}" = - ]; then exec cat; fi
    awk 'BEGIN {
        split("/ /news /login /images/cat.png", page, " ")
        for (i = 1; i <= 2000; i++)
            if (i == 1900) print "kernel: disk failure on sda1, sector 81623"
            else print "GET " page[i * i % 7 % 4 + 1] " 200"
    }'
}

# One JSON line per character comes in. A line of the log is shown if it cost more bits per character than its limit:
# three times the mean of the lines so far, of which the first 200 are only learned from.
surprising() {
    "$PYTHON" -c '
import json, sys
line, bits, lines, usual = "", 0.0, 0, 0.0
for entry in map(json.loads, sys.stdin):
    if entry["symbol"] != "\n":
        line, bits = line + entry["symbol"], bits + entry["surprise"]
        continue
    lines, cost = lines + 1, bits / max(1, len(line))
    if lines > 200 and cost > 3 * usual:
        print(f"line {lines}, {cost:.1f} bits per character where {usual:.1f} are usual: {line}", flush=True)
    usual += (cost - usual) / min(lines, 200)
    line, bits = "", 0.0
'
}

# --flush 1: no line waits longer than a second for its answer.
log "$@" |
    $NOREWIND train - --format text --alphabet-size 100 --hidden 32 --method uoro --rate 3e-3 \
        --predictions stdout --flush 1 --quiet --out "$FOLDER/log" |
    surprising
