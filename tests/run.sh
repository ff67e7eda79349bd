#!/usr/bin/env bash
# Runs every test. Installs what they need with apt, only where it is missing (Debian 12, as root).
set -euo pipefail
cd "$(dirname "$0")/.."

# program that must be there -> package that brings it
declare -A needs=(
    [redis-server]=redis-server
    [/usr/lib/postgresql/15/bin/postgres]=postgresql-15
    [pgbouncer]=pgbouncer
    [/usr/sbin/nginx]=nginx
    [promtool]=prometheus
    [pebble]=pebble
    [cc]=gcc
)
missing=()
for program in "${!needs[@]}"; do
    command -v "$program" >/dev/null || missing+=("${needs[$program]}")
done
if ((${#missing[@]})); then
    # Our tests start their own servers: the packages must not start theirs.
    policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

# Many stories hold many sockets.
ulimit -n "$(ulimit -Hn)" 2>/dev/null || true
cargo test --locked --no-fail-fast "$@"
