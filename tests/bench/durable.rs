//! What the durable store alone takes: events claimed and settled a second, from callers in parallel, on a database
//! of Postgres or a new file of SQLite. No gateway, no Redis, no load program beside it.
//!
//!     cargo run --release --example bench-durable -- postgres://umavez@127.0.0.1/bench
//!     cargo run --release --example bench-durable -- /tmp/bench.db
#![expect(
    clippy::disallowed_methods,
    reason = "a measurement goes by the machine's clock, and spawns its callers"
)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use tokio_util::task::TaskTracker;
use umavez::clock::UnixMillis;
use umavez::config::{self, PostgresConfig, Secret};
use umavez::ledger::durable::{ClaimAsk, Durable, End, Seen, SettleAsk, Settled};
use umavez::ledger::{EventKey, Fence, Fingerprint, OnUnknown, Receipt};

const MINUTE: Duration = Duration::from_secs(60);

/// Claim and settle new events, and print how many a second.
#[derive(Debug, Parser)]
struct Args {
    /// A `postgres://` URL, or the path of an SQLite file.
    store: String,
    /// Callers in parallel; each claims, settles, and begins anew.
    #[arg(long, value_delimiter = ',', default_values_t = [16_u16, 64, 256])]
    parallel: Vec<u16>,
    /// Events that a caller claims at once, and settles at once, as a request with so many items does.
    #[arg(long, default_value_t = 1)]
    items: u32,
    /// Seconds for each number of callers.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let config = if args.store.starts_with("postgres") {
        config::Durable::Postgres(PostgresConfig {
            url: Secret(args.store.as_str().into()),
            timeout: Duration::from_secs(5),
        })
    } else {
        config::Durable::Sqlite { path: PathBuf::from(&args.store), timeout: Duration::from_secs(5) }
    };
    let limits = config::Limits { waiting_writes_max: 10_000, ..config::Limits::default() };
    let store = Durable::open(&config, &limits, &TaskTracker::new()).await?;
    for parallel in args.parallel {
        let until = Instant::now() + Duration::from_secs_f64(args.seconds);
        let run: u64 = rand::random();
        let callers: Vec<_> = (0..parallel)
            .map(|caller| {
                tokio::spawn(call(store.clone(), format!("{run:016x}-{caller}"), args.items, until))
            })
            .collect();
        let (mut claims, mut settles) = (Vec::new(), Vec::new());
        for caller in callers {
            let took = caller.await??;
            claims.extend(took.iter().map(|took| took.0));
            settles.extend(took.iter().map(|took| took.1));
        }
        let requests = f64::from(u32::try_from(claims.len())?);
        println!(
            "{parallel:>4} in parallel: {:>7.0} events/s, p50 of a claim {:>6} µs, of a settlement {:>6} µs",
            requests * f64::from(args.items) / args.seconds,
            median(claims),
            median(settles),
        );
    }
    store.close().await;
    Ok(())
}

fn median(mut durations: Vec<Duration>) -> u128 {
    durations.sort_unstable();
    durations.get(durations.len() / 2).map_or(0, Duration::as_micros)
}

/// One caller, until then; how long each of its claims and settlements took.
async fn call(
    store: Durable,
    name: String,
    items: u32,
    until: Instant,
) -> anyhow::Result<Vec<(Duration, Duration)>> {
    let receipt = Arc::new(Receipt {
        status: 200,
        headers: Vec::new(),
        body: Some(Bytes::from_static(b"ok")),
        at: UnixMillis(1_700_000_000_000),
    });
    let route: Arc<str> = "bench".into();
    let mut took = Vec::new();
    while Instant::now() < until {
        let ask = |item| {
            let text = format!("bench:{name}-{}-{item}", took.len());
            ClaimAsk {
                fingerprint: Fingerprint::of([text.as_bytes()]),
                key: EventKey::from_text(text),
                route: Arc::clone(&route),
                fence: Fence::draw(),
                lease: MINUTE,
                durable_ttl: 10 * MINUTE,
                on_unknown: OnUnknown::Retry,
                payload: None,
            }
        };
        let asks: Vec<ClaimAsk> = (0..items).map(ask).collect();
        let end = |ask: &ClaimAsk| SettleAsk {
            digest: ask.key.digest(),
            fence: ask.fence,
            end: End::Commit(Arc::clone(&receipt)),
            payload: None,
        };
        let ends = asks.iter().map(end).collect();
        let began = Instant::now();
        let seen = store.claim(asks).await?;
        let claimed = began.elapsed();
        let new = |seen: &Seen| matches!(seen, Seen::Claimed { attempt: 1, .. });
        anyhow::ensure!(seen.iter().all(new), "claimed as {seen:?}");
        let began = Instant::now();
        let settled = store.settle(ends).await?;
        took.push((claimed, began.elapsed()));
        anyhow::ensure!(settled.iter().all(|said| *said == Settled::Recorded), "settled as {settled:?}");
    }
    Ok(took)
}
