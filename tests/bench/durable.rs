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
        config::Durable::Sqlite { path: PathBuf::from(&args.store) }
    };
    let limits = config::Limits { waiting_writes_max: 10_000, ..config::Limits::default() };
    let store = Durable::open(&config, &limits, &TaskTracker::new()).await?;
    for parallel in args.parallel {
        let until = Instant::now() + Duration::from_secs_f64(args.seconds);
        let run: u64 = rand::random();
        let callers: Vec<_> =
            (0..parallel).map(|caller| tokio::spawn(call(store.clone(), run, caller, until))).collect();
        let mut events = 0.0;
        for caller in callers {
            events += f64::from(caller.await??);
        }
        println!("{parallel:>4} in parallel: {:>7.0} events/s", events / args.seconds);
    }
    store.close().await;
    Ok(())
}

/// One caller, until then; how many events it claimed and settled.
async fn call(store: Durable, run: u64, caller: u16, until: Instant) -> anyhow::Result<u32> {
    let receipt = Arc::new(Receipt {
        status: 200,
        headers: Vec::new(),
        body: Some(Bytes::from_static(b"ok")),
        at: UnixMillis(1_700_000_000_000),
    });
    let mut events = 0;
    while Instant::now() < until {
        let text = format!("bench:{run:016x}-{caller}-{events}");
        let ask = ClaimAsk {
            key: EventKey::from_text(text.as_str()),
            route: "bench".into(),
            fence: Fence::draw(),
            lease: MINUTE,
            durable_ttl: 10 * MINUTE,
            on_unknown: OnUnknown::Retry,
            fingerprint: Fingerprint::of(text.as_bytes()),
            payload: None,
        };
        let end = SettleAsk {
            digest: ask.key.digest(),
            fence: ask.fence,
            end: End::Commit(Arc::clone(&receipt)),
            payload: None,
        };
        let seen = store.claim(vec![ask]).await?;
        anyhow::ensure!(matches!(seen.as_slice(), [Seen::Claimed { attempt: 1, .. }]), "claimed as {seen:?}");
        let settled = store.settle(vec![end]).await?;
        anyhow::ensure!(settled == [Settled::Recorded], "settled as {settled:?}");
        events += 1;
    }
    Ok(events)
}
