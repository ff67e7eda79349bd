//! What an error that fred tells means for what comes next. Decides nothing.

use fred::error::ErrorKind;

use super::Cause;

/// True where the connection is gone, or the server is one that takes no writes.
pub(super) fn is_lost(cause: &Cause) -> bool {
    let gone = matches!(
        cause.kind(),
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Backpressure | ErrorKind::Auth
    );
    gone || cause.details().starts_with("READONLY") || cause.details().starts_with("LOADING")
}

pub(super) fn is_syntax_error(cause: &Cause) -> bool {
    cause.details().starts_with("ERR syntax error")
}

/// True where the server doesn't know a script by its hash.
pub(super) fn is_unknown(cause: &Cause) -> bool {
    cause.details().starts_with("NOSCRIPT")
}
