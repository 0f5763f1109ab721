#!/bin/sh
# Learn the patterns of a log while it is written, and show the most surprising lines.
#
#     sh examples/pipeline.sh                          # a generated log
#     tail -F app.log | sh examples/pipeline.sh -      # your own log, until Ctrl-C
set -eu

NOREWIND=${NOREWIND:-norewind}
FOLDER=$(mktemp -d)
trap 'rm -rf "$FOLDER"' EXIT
trap 'exit 130' INT TERM

# 1000 lines; one of the last is unlike the others.
log() {
    if [ "${1:-}" = - ]; then exec cat; fi
    awk 'BEGIN {
        split("/ /news /login /images/cat.png", page, " ")
        for (i = 1; i <= 1000; i++)
            if (i == 950) print "kernel: disk failure on sda1, sector 81623"
            else print "GET " page[i * i % 7 % 4 + 1] " 200"
    }'
}

# With --predictions stdout --flush 1, a JSON line with a score is printed for every line of the log within a second.
log "$@" |
    $NOREWIND train - --format text --hidden 32 --method uoro --rate 3e-3 --per line --top 3 --out "$FOLDER/log" 2>&1 |
    sed -n '/^The .* most surprising lines/,/^See/{/^See/!p}'
