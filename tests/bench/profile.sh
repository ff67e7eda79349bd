#!/usr/bin/env bash
# Shows where one contestant spends its CPU under one load: samples it with perf while run.sh drives it.
#
#   tests/bench/profile.sh [PEER] [LOAD]      stores and first, if left out; names as in run.sh
#
# The samples stay in perf.data in the current folder. Debian package: linux-perf.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v perf >/dev/null || { echo "profile: perf is missing: install the Debian package linux-perf" >&2; exit 1; }
export PEERS=${1:-stores} LOADS=${2:-first} ROUNDS=1 SECONDS_EACH=${SECONDS_EACH:-8} PROFILE=$PWD/perf.data
"$here/run.sh" >/dev/null
perf report -i "$PROFILE" --no-children --percent-limit 0.7 --stdio --sort dso,symbol -g none 2>/dev/null |
    sed -e '/^#/d; /^$/d' -e 's/ \{8,\}.*//' | cut -c 1-140
