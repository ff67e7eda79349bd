//! umavez: an edge gateway that makes webhooks happen once. This file is the map: one line per room.
//! The walls between the rooms are in ARCHITECTURE.md, and `tests/it/tidy.rs` holds them.

pub mod admin; //     /metrics, /live, /ready and the event API
pub mod clock; //     the only caller of the system clock
pub mod config; //    what an operator writes, parsed into types that cannot be wrong
pub mod demo; //      the main job in one command, shown and checked
pub mod flow; //      the life of a request, in order
pub mod gateway; //   builds every part from a Config, runs both listeners, drains
pub mod ledger; //    keys, claims, verdicts, receipts
pub mod listen; //    accept loops and connection limits
pub mod metrics; //   every metric: name, labels, help
pub mod providers; // pure: signatures, items and keys, as data
pub mod tls; //       certificates: read, chosen by name, replaced while connections come and go
pub mod trace; //     W3C trace context, a request's spans, and their way to a collector
pub mod upstream; //  the pooled client to the app, and what an attempt meant
