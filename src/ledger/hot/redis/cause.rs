//! What an error that fred tells means for what comes next. Decides nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use fred::error::ErrorKind;

use super::Cause;

/// What the system said, where fred tells it as `Os { code: 111, …, message: "Connection refused" }`.
pub(super) fn said_by_system(details: &str) -> &str {
    let message = details.strip_prefix("Os {").and_then(|rest| rest.split_once("message: \""));
    message.and_then(|(_, said)| said.strip_suffix("\" }")).unwrap_or(details)
}

/// True where the connection is gone, or the server is one that takes no writes.
pub(super) fn is_lost(cause: &Cause) -> bool {
    let gone = matches!(
        cause.kind(),
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Backpressure | ErrorKind::Auth
    );
    let text = plain(cause.details());
    gone || text.starts_with("READONLY") || text.starts_with("LOADING")
}

pub(super) fn is_syntax_error(cause: &Cause) -> bool {
    cause.details().starts_with("ERR syntax error")
}

/// True where the server doesn't know a script by its hash.
pub(super) fn is_unknown(cause: &Cause) -> bool {
    cause.details().starts_with("NOSCRIPT")
}

/// True where the key holds what we never write, which says nothing of the server.
pub(super) fn is_wrong_type(cause: &Cause) -> bool {
    plain(cause.details()).starts_with("WRONGTYPE")
}

/// True where the server takes one command's keys only from one slot: `CROSSSLOT Keys in request don't hash to the same
/// slot` by a cluster's nodes, other words with the same end by some proxies before a cluster.
pub(super) fn is_apart(cause: &Cause) -> bool {
    cause.details().contains("same slot")
}

/// True where another node of a cluster has the key.
pub(super) fn is_elsewhere(cause: &Cause) -> bool {
    cause.details().starts_with("MOVED ")
}

/// Before 7.0 a script's errors come with words around them: `@user_script: 3: -OOM command not allowed`, or
/// `ERR Error running script (call to f_…): @user_script:3: WRONGTYPE Operation …`.
pub(super) fn plain(text: &str) -> &str {
    let called = text.strip_prefix("ERR Error running script").and_then(|rest| rest.split_once("): "));
    let mut told = called.map_or(text, |(_, told)| told);
    while let Some((_, rest)) =
        told.strip_prefix("@user_script:").and_then(|rest| rest.trim_start().split_once(": "))
    {
        told = rest;
    }
    told.trim_start_matches('-').trim_end()
}

/// Whether a server that the URL names as one keeps its keys apart, in slots. Once known it is so for good.
#[derive(Debug, Default)]
pub(super) struct Apart(AtomicBool);

impl Apart {
    pub(super) fn holds(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Says so, once.
    pub(super) fn is_so(&self) {
        if !self.0.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "redis keeps its keys in slots, and is asked key by key; where it is a cluster, \
                 [hot] url should begin with redis-cluster://"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_reads_the_same_from_any_version() {
        for text in [
            "READONLY You can't write",
            "-READONLY You can't write\r\n",
            "@user_script: 7: -READONLY You can't write\r\n",
            "ERR Error running script (call to f_0a1b): @user_script:7: -READONLY You can't write",
            "ERR Error running script (call to f_0a1b): @user_script:7: @user_script: 7: -READONLY You can't write",
        ] {
            assert_eq!(plain(text), "READONLY You can't write", "{text:?}");
        }
        let seven = "WRONGTYPE Operation against a key script: 0a1b, on @user_script:2.";
        assert_eq!(plain(seven), seven);
        assert!(is_wrong_type(&Cause::new(ErrorKind::Unknown, seven)));
    }
}
