#!/usr/bin/env bash
# Runs each fuzz target for some seconds, from the fixtures and from what earlier runs found (tests/fuzz/corpus).
#
#   tests/fuzz/run.sh [SECONDS] [TARGET...]      60 seconds each, all targets, if left out
#
# Needs cargo-fuzz (`cargo install cargo-fuzz`). Works with the stable compiler: RUSTC_BOOTSTRAP lets it take the
# coverage flags. There is no sanitizer, because the crate holds no unsafe code; panics and failed checks are what
# it looks for.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(items signature_headers cut xml forms schema)

# A seed is a fixture's headers, an empty line, its body.
seeds=$here/corpus/fixtures
mkdir -p "$seeds"
for headers in "$here"/../fixtures/*.headers; do
    name=$(basename "$headers" .headers)
    { cat "$headers"; echo; cat "${headers%.headers}.body"; } >"$seeds/$name"
done

# The schema's seeds are the provider files.
files=$here/corpus/providers
mkdir -p "$files"
cp "$here"/../../src/providers/*.toml "$files"

export RUSTC_BOOTSTRAP=1
for target in "${targets[@]}"; do
    mkdir -p "$here/corpus/$target"
    seeded=$seeds
    [ "$target" != schema ] || seeded=$files
    cargo fuzz run --fuzz-dir "$here" --sanitizer none "$target" "$here/corpus/$target" "$seeded" -- \
        -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1
done
