//! Keys, claims, verdicts and receipts across both stores. Knows no HTTP server, route or provider.

mod claim;
pub mod durable;
pub mod hot;

pub use claim::{
    Claim, Digest, EventKey, Fence, Fingerprint, Layer, OnUnknown, Payload, READABLE_TEXT_MAX, Receipt,
    Settlement, Terms,
};
