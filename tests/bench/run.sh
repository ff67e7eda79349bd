#!/usr/bin/env bash
# Measures umavez beside its peers, all in one run on this machine, and prints a table and the goals.
#
#   tests/bench/run.sh [RESULTS.jsonl]        three interleaved rounds, about 25 minutes
#   QUICK=1 tests/bench/run.sh                one short round, under 4 minutes: a look, not a figure
#
# tests/bench/profile.sh samples one contestant.
# ROUNDS, SECONDS_EACH, LOADS and PEERS (space-separated names, below), ROWS, PORT_BASE and BUILD=0 change what runs.
# Everything lives in one temporary folder and on loopback ports; only processes started here are stopped.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}/release
quick=${QUICK:-0}
rounds=${ROUNDS:-$([ "$quick" = 1 ] && echo 1 || echo 3)}
seconds=${SECONDS_EACH:-$([ "$quick" = 1 ] && echo 1.5 || echo 8)}
warm=$([ "$quick" = 1 ] && echo 0.4 || echo 1)
rows=${ROWS:-$([ "$quick" = 1 ] && echo 500000 || echo 5000000)}
loads=${LOADS:-"first half most wide nested paced paced-copies slow1 slow3 batch rows"}
peers=${PEERS:-"pass nginx lua naive embedded stores"}
base=${PORT_BASE:-28100}
upstream=$base redis=$((base + 1)) postgres=$((base + 2)) port=$((base + 10)) admin=$((base + 11))
workers=$(nproc)
secret=whsec_$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
dir=$(mktemp -d "${TMPDIR:-/tmp}/umavez-bench.XXXXXX")
results=${1:-$dir/results.jsonl}
pids=()

# --- starting and stopping ---------------------------------------------------------------------------------------

stop() { # PID: ends one process that we started, by force after ten seconds
    local pid=$1 tries=0
    kill -TERM "$pid" 2>/dev/null || return 0
    while kill -0 "$pid" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -eq 200 ] && kill -KILL "$pid" 2>/dev/null
        sleep 0.05
    done
    wait "$pid" 2>/dev/null || true
}

clean_up() {
    trap - EXIT INT TERM
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do stop "${pids[$i]}"; done
    if [ "${KEEP:-0}" = 1 ]; then echo "kept: $dir" >&2; else rm -rf "$dir"; fi
}
trap clean_up EXIT
trap 'exit 130' INT TERM

fail() { echo "bench: $*" >&2; exit 1; }

need() { command -v "$1" >/dev/null || fail "$1 is missing: install the Debian package $2"; }

wait_for_port() { # PORT PID LOG
    local tries=0
    until (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; do
        tries=$((tries + 1))
        kill -0 "$2" 2>/dev/null || { tail -5 "$3" >&2; return 1; }
        [ $tries -lt 300 ] || { tail -5 "$3" >&2; return 1; }
        sleep 0.05
    done
}

wait_for_peer() { # PEER PID LOG: umavez opens its port before its stores, and says when it serves
    local tries=0
    wait_for_port "$port" "$2" "$3" || return 1
    case $1 in pass | embedded | stores) ;; *) return 0 ;; esac
    until grep -q listening "$3"; do
        tries=$((tries + 1))
        kill -0 "$2" 2>/dev/null && [ $tries -lt 600 ] || { tail -5 "$3" >&2; return 1; }
        sleep 0.05
    done
}

configure() { # TEMPLATE DATABASE: fills in ports and paths
    sed -e "s|@PORT@|$port|g; s|@ADMIN@|$admin|g; s|@UPSTREAM@|$upstream|g; s|@REDIS@|$redis|g" \
        -e "s|@POSTGRES@|$postgres|g; s|@DATABASE@|$2|g; s|@WORKERS@|$workers|g; s|@CONF@|$here/conf|g" \
        -e "s|@MODULES@|$modules|g" "$here/conf/$1"
}

as_postgres() { # Postgres refuses to run as root
    if [ "$(id -u)" = 0 ]; then setpriv --reuid postgres --regid postgres --clear-groups -- "$@"; else "$@"; fi
}

sql() { psql -h 127.0.0.1 -p "$postgres" -U bench -d "${2:-bench}" -qAtX -v ON_ERROR_STOP=1 -c "$1"; }

start_parts() {
    chmod 711 "$dir"
    mkdir "$dir/pg" "$dir/up" "$dir/redis"
    cc -O2 -shared -fPIC -o "$dir/slowsync.so" "$here/slowsync.c" -ldl
    echo 0 >"$dir/slow_us"
    chmod 644 "$dir/slow_us"
    if [ "$(id -u)" = 0 ]; then chown postgres "$dir/pg"; fi
    as_postgres "$pgbin/initdb" -D "$dir/pg/data" -U bench -A trust --no-sync >"$dir/initdb.log"
    # Durable as shipped (fsync, synchronous_commit); sized so that no checkpoint falls into a measurement.
    (
        cd "$dir/pg"
        export LD_PRELOAD="$dir/slowsync.so" SLOWSYNC_FILE="$dir/slow_us"
        as_postgres_exec "$pgbin/postgres" -D "$dir/pg/data" -p "$postgres" -c listen_addresses=127.0.0.1 \
            -c unix_socket_directories= -c shared_buffers=512MB -c max_wal_size=8GB -c checkpoint_timeout=30min
    ) >"$dir/postgres.log" 2>&1 &
    pids+=($!)
    wait_for_port "$postgres" $! "$dir/postgres.log" || fail "postgres did not start"
    until sql "select" postgres >/dev/null 2>&1; do sleep 0.1; done
    sql "create database bench" postgres
    sql "create table commit_probe (key text primary key, at timestamptz not null default now())"
    redis-server --port "$redis" --bind 127.0.0.1 --dir "$dir/redis" --save '' --appendonly no >"$dir/redis.log" &
    pids+=($!)
    wait_for_port "$redis" $! "$dir/redis.log" || fail "redis did not start"
    configure upstream.conf bench | sed "s|127.0.0.1:$port|127.0.0.1:$upstream|" >"$dir/up/nginx.conf"
    nginx -p "$dir/up" -c "$dir/up/nginx.conf" -e "$dir/up/error.log" &
    pids+=($!)
    wait_for_port "$upstream" $! "$dir/up/error.log" || fail "the upstream did not start"
}

as_postgres_exec() { # as as_postgres, but the process becomes the server, so that $! is its pid
    if [ "$(id -u)" = 0 ]; then exec setpriv --reuid postgres --regid postgres --clear-groups -- "$@"; else exec "$@"; fi
}

peer_exec() { # PEER DATABASE: becomes the contestant
    cd "$dir/peer"
    case $1 in
    nginx | lua)
        configure "$1.conf" "$2" >nginx.conf
        exec nginx -p "$dir/peer" -c "$dir/peer/nginx.conf" -e "$dir/peer/error.log"
        ;;
    naive)
        exec "$target/examples/bench-naive" --port "$port" --upstream "127.0.0.1:$upstream" \
            --redis "redis://127.0.0.1:$redis" --postgres "postgres://bench@127.0.0.1:$postgres/$2"
        ;;
    pass | embedded | stores)
        configure "umavez-$1.toml" "$2" >umavez.toml
        export BENCH_SECRET=$secret
        exec "$target/umavez" run --config umavez.toml
        ;;
    *) fail "no peer is named $1" ;;
    esac
}

# --- measuring ---------------------------------------------------------------------------------------------------

processes() { # PID: itself and its children (nginx workers)
    echo "$1" $(cat "/proc/$1/task/$1/children" 2>/dev/null || true)
}

ticks() { # PID: CPU time of the process and its children, all threads, in clock ticks
    local sum=0 pid line
    for pid in $(processes "$1"); do
        line=$(cat "/proc/$pid/stat")
        set -- ${line##*) }
        sum=$((sum + ${12} + ${13}))
    done
    echo $sum
}

peak_kib() { # PID: peak resident memory of the process and its children
    local sum=0 pid
    for pid in $(processes "$1"); do
        sum=$((sum + $(awk '/^VmHWM/ { print $2 }' "/proc/$pid/status")))
    done
    echo $sum
}

empty_stores() {
    redis-cli -p "$redis" flushall >/dev/null
    sql "do \$\$ declare t text; begin
        for t in select quote_ident(tablename) from pg_tables where schemaname = 'public' and tablename !~ 'migration'
        loop execute 'truncate ' || t || ' cascade'; end loop; end \$\$"
    sql checkpoint
}

measure() { # ROUND LOAD PEER DATABASE ARGS...: one contestant under one load
    local round=$1 load=$2 peer=$3 database=$4 pid before after tally hertz sampler
    shift 4
    rm -rf "$dir/peer"
    mkdir "$dir/peer"
    case $peer in lua | naive | stores) empty_stores ;; esac
    (peer_exec "$peer" "$database") >"$dir/peer/log" 2>&1 &
    pid=$!
    pids+=($pid)
    if wait_for_peer "$peer" $pid "$dir/peer/log"; then
        if [ -n "${PROFILE:-}" ]; then
            # A virtual machine often has no hardware counters; the clock always ticks.
            perf record -q -e cpu-clock -F 997 -g -o "$PROFILE" -p "$(processes $pid | tr ' ' ',')" >/dev/null 2>&1 &
            sampler=$!
        fi
        before=$(ticks $pid)
        tally=$("$target/examples/bench-load" --port "$port" --secret "$secret" --seconds "$seconds" --warm "$warm" "$@") ||
            tally=null
        after=$(ticks $pid)
        if [ -n "${PROFILE:-}" ]; then kill -INT $sampler && wait $sampler || true; fi
        hertz=$(getconf CLK_TCK)
        printf '{"round":%s,"load":"%s","peer":"%s","cpu_s":%s,"peak_kib":%s,"tally":%s}\n' "$round" "$load" "$peer" \
            "$(awk -v t=$((after - before)) -v h="$hertz" 'BEGIN { print t / h }')" "$(peak_kib $pid)" "$tally" |
            tee -a "$results" | python3 "$here/report.py" --line >&2
    else
        echo "bench: $peer did not start; its lines will be missing" >&2
    fi
    stop $pid
    unset 'pids[-1]'
}

each() { # ROUND LOAD "PEERS" ARGS...: every chosen contestant under one load, one after the other
    local round=$1 load=$2 wanted=$3 peer
    shift 3
    case " $loads " in *" $load "*) ;; *) return 0 ;; esac
    # Every other round runs backwards, so that no contestant always follows the same one.
    if [ $((round % 2)) = 0 ]; then wanted=$(printf '%s\n' $wanted | tac | tr '\n' ' '); fi
    for peer in $wanted; do
        case " $peers " in *" $peer "*) measure "$round" "$load" "$peer" bench "$@" ;; esac
    done
}

commit_latency() { # ROUND LOAD: what one commit of this database takes, as its slowness is set now
    sql "truncate commit_probe"
    rm -f "$dir"/probe.*
    "$pgbin/pgbench" -h 127.0.0.1 -p "$postgres" -U bench -n -M prepared -f "$here/commit.sql" -c 1 -T 2 \
        -l --log-prefix="$dir/probe" bench >/dev/null 2>&1
    sort -n -k3,3 "$dir"/probe.* | awk -v r="$1" -v l="$2" '{ us[NR] = $3 }
        END { printf "{\"round\":%s,\"load\":\"%s\",\"commit_us\":%d}\n", r, l, us[int((NR + 1) / 2)] }' >>"$results"
}

slow() { # MILLISECONDS ROUND: the durable contestants on a database whose flushes take longer
    case " $loads " in *" slow$1 "*) ;; *) return 0 ;; esac
    echo $(($1 * 1000)) >"$dir/slow_us"
    commit_latency "$2" "slow$1"
    each "$2" "slow$1" "naive stores" --connections 256
    echo 0 >"$dir/slow_us"
}

batches() { # ROUND: 1,000 items in one request beside one, by one sender, on databases of different slowness
    case " $loads " in *" batch "*) ;; *) return 0 ;; esac
    local slower name chosen=$loads
    for slower in 0 1 3; do
        echo $((slower * 1000)) >"$dir/slow_us"
        for name in one batch; do
            loads=$name-slow$slower
            each "$1" "$loads" "stores" --connections 1 --body "$([ $name = one ] && echo flat || echo batch)"
        done
    done
    echo 0 >"$dir/slow_us"
    loads=$chosen
}

fill() { # a second database, whose event table already holds many rows
    case " $loads " in *" rows "*) ;; *) return 0 ;; esac
    case " $peers " in *" stores "*) ;; *) return 0 ;; esac
    sql "create database full_table" postgres
    rm -rf "$dir/peer"
    mkdir "$dir/peer"
    (peer_exec stores full_table) >"$dir/peer/log" 2>&1 &
    local pid=$!
    pids+=($pid)
    local started=1
    wait_for_peer stores $pid "$dir/peer/log" || started=0
    stop $pid
    unset 'pids[-1]'
    [ $started = 1 ] && [ -s "$here/fill.sql" ] || { loads=${loads/rows/}; return 0; }
    echo "bench: filling the event table with $rows rows" >&2
    psql -h 127.0.0.1 -p "$postgres" -U bench -d full_table -qX -v ON_ERROR_STOP=1 -v rows="$rows" -f "$here/fill.sql"
    sql "vacuum analyze" full_table
    sql checkpoint full_table
}

rows_pair() { # ROUND: first-seen throughput without and with the rows, one after the other
    case " $loads " in *" rows "*) ;; *) return 0 ;; esac
    case " $peers " in *" stores "*) ;; *) return 0 ;; esac
    measure "$1" rows-none stores bench --connections 64
    measure "$1" rows-full stores full_table --connections 64
}

# --- the run -----------------------------------------------------------------------------------------------------

need redis-server redis-server
need redis-cli redis-tools
need nginx nginx-extras
need psql postgresql-client
need cc gcc
need python3 python3
pgbin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -1)
[ -x "$pgbin/postgres" ] || fail "postgres is missing: install the Debian package postgresql"
modules=$(dirname "$(ls /usr/lib/nginx/modules/ngx_http_lua_module.so 2>/dev/null || echo /missing/x)")
[ "$modules" != /missing ] || fail "nginx has no Lua: install libnginx-mod-http-lua lua-nginx-redis lua-cjson"
if [ "${BUILD:-1}" = 1 ]; then
    cargo build --release --manifest-path "$root/Cargo.toml" --bin umavez --example bench-load --example bench-naive
fi

: >"$results"
start_parts
fill
for round in $(seq 1 "$rounds"); do
    commit_latency "$round" paced
    each "$round" first "pass nginx lua naive embedded stores"
    each "$round" half "lua naive embedded stores" --copies 0.5
    each "$round" most "lua naive embedded stores" --copies 0.95
    each "$round" wide "pass nginx lua naive embedded stores" --connections 256
    each "$round" nested "pass nginx lua naive embedded stores" --body nested
    each "$round" paced "pass nginx lua naive embedded stores" --connections 32 --rate 500
    each "$round" paced-copies "lua naive embedded stores" --connections 32 --rate 500 --copies 0.95
    slow 1 "$round"
    slow 3 "$round"
    batches "$round"
    rows_pair "$round"
done
python3 "$here/report.py" "$results"
