//! One binary, a list of stories.
#![expect(clippy::unwrap_used, reason = "a story may stop at what it did not expect")]
#![expect(clippy::disallowed_methods, reason = "stories move by the machine's clock and spawn what they like")]

mod cli;
mod config;
mod hot;
mod support;
mod signature_vectors;
mod durable;
mod ambiguity;
mod answers;
mod batches;
mod crash;
mod drain;
mod embedded;
mod keys;
mod nodes;
mod observability;
mod proxy;
mod retries;
mod signatures;
mod stores_down;
