//! TLS on real sockets: what senders are shown, what they may show, what is replaced while they send, and apps behind
//! `https://`. Every certificate is made by the story.

pub(crate) mod app;
pub(crate) mod caller;
mod clients;
pub(crate) mod pki;
mod renewal;
mod serving;
mod settings;
mod slow;
pub(crate) mod stalled;
mod upstream;
