//! One binary, a list of stories.
#![expect(clippy::unwrap_used, reason = "a story may stop at what it did not expect")]
#![expect(
    clippy::disallowed_methods,
    reason = "stories move by the machine's clock and spawn what they like"
)]

mod acme;
mod ambiguity;
mod answers;
mod batches;
mod bounds;
mod capture;
mod catalogue;
mod changes;
mod cli;
mod config;
mod conflicts;
mod crash;
mod crowded;
mod dashboards;
mod demo;
mod docs;
mod drain;
mod durable;
mod embedded;
mod endings;
mod failover;
mod handover;
mod handshakes;
mod hot;
mod init;
mod keydiff;
mod keys;
mod long_receipts;
mod lookalikes;
mod misread;
mod model;
mod near;
mod nodes;
mod observability;
mod overlooked;
mod pass;
mod presets;
mod properties;
mod providers;
mod proxy;
mod redact;
mod reload;
mod replays;
mod retries;
mod shadow;
mod signature_vectors;
mod signatures;
mod soak;
mod store_urls;
mod stores_down;
mod storm;
mod stuck;
mod support;
mod tidy;
mod tls;
mod traces;
mod waiting;
