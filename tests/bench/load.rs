//! The load program: sends signed deliveries, shaped as Stripe's or Meta's, over kept-alive HTTP/1.1 connections and prints one
//! line of JSON about what came back. Closed loop by default; `--rate` makes an open loop whose latencies count
//! from the moment a request was due, so that a stalled server can't hide behind a client that waits for it.
//! Bounded in time and in requests. Not a general HTTP client: it understands the answers a gateway gives here.

mod answer;
mod closed;
mod event;
mod paced;
mod tally;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::Parser;

use crate::event::Shape;

/// Send deliveries to a server on this machine and report throughput and latency.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Args {
    /// Port on 127.0.0.1.
    #[arg(long)]
    port: u16,
    /// Left out: the route that the body is for.
    #[arg(long)]
    path: Option<String>,
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// Seconds that count, after the warm-up.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seconds before anything counts.
    #[arg(long, default_value_t = 1.0)]
    warm: f64,
    /// Stop after so many requests, warm-up included.
    #[arg(long, default_value_t = 3_000_000)]
    requests: u64,
    /// Requests per second of an open loop; left out: as fast as the answers come.
    #[arg(long)]
    rate: Option<f64>,
    /// Share of requests that repeat a recently finished event, 0 to 1.
    #[arg(long, default_value_t = 0.0)]
    copies: f64,
    /// How many finished events are remembered for copies.
    #[arg(long, default_value_t = 20_000)]
    recent: usize,
    #[arg(long, value_enum, default_value_t = Shape::Flat)]
    body: Shape,
    /// Signs each request as the body's provider does; left out: unsigned.
    #[arg(long)]
    secret: Option<String>,
    /// Threads of a closed loop; connections are shared out among them.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
}

impl Args {
    fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    fn warm(&self) -> Duration {
        Duration::from_secs_f64(self.warm.clamp(0.0, 60.0))
    }

    /// From the start to the end of what counts.
    fn whole(&self) -> Duration {
        self.warm() + Duration::from_secs_f64(self.seconds.clamp(0.1, 600.0))
    }
}

fn main() -> std::io::Result<()> {
    let args = Args::parse();
    let tally = match args.rate {
        Some(rate) => paced::run(&args, rate)?,
        None => closed::run(&args)?,
    };
    println!("{}", tally.json());
    Ok(())
}
