#!/usr/bin/env bash
# Holds our signatures against the providers' own libraries: main.mjs tells what is checked, providers.mjs which library
# says what. The libraries' versions and digests are locked in package-lock.json.
#
#   tests/interop/run.sh            checks
#   tests/interop/run.sh --make     checks, and writes tests/interop/vectors.json anew, which `cargo test` reads
#
# Installs Node.js with apt where it is missing (Debian 12, as root), and the libraries into target/interop.
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -q -y --no-install-recommends nodejs npm
fi
major=$(node -p 'process.versions.node.split(".")[0]')
if ((major < 18)); then
    echo "tests/interop needs Node.js 18 or later; this is $(node --version)" >&2
    exit 1
fi

# As the tests have it: with other features every dependency would be built anew.
cargo test --quiet --locked --test it --no-run
target=$(cargo metadata --locked --no-deps --format-version 1 | node -p 'JSON.parse(require("fs").readFileSync(0)).target_directory')
work=$target/interop
mkdir -p "$work"
# No install scripts: nothing here needs one.
if ! cmp -s tests/interop/package-lock.json "$work/installed.json"; then
    cp tests/interop/package.json tests/interop/package-lock.json "$work"
    npm ci --prefix "$work" --ignore-scripts --omit=optional --omit=peer --no-audit --no-fund --loglevel=error
    cp tests/interop/package-lock.json "$work/installed.json"
fi
cp tests/interop/*.mjs "$work"
node "$work/main.mjs" "$target/debug/umavez" src/providers tests/interop/vectors.json "$@"
