//! Reads a request's body up to its bound, in time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;

pub use super::decode::decoded;
use crate::upstream::{Arriving, Cause};

/// Why there is no body to work with.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// Answer 413.
    #[error("the body is longer than {0} bytes")]
    TooLarge(usize),
    /// Answer 408.
    #[error("the body did not arrive within {0:?}")]
    Timeout(Duration),
    /// The sender is gone, or broke the framing: whoever is still there is answered 400.
    #[error("the body broke off")]
    Broken(#[source] Cause),
    /// An encoding we don't know, or bytes that aren't what they say: nothing can be read from it, and it passes.
    #[error("the body's encoding is not understood")]
    NotUnderstood,
    /// Undoing its encoding takes too long, or others' bodies leave no turn for it: answer 503.
    #[error("undoing the body's encoding takes too long")]
    TooMuchWork,
}

/// A body that has arrived.
#[derive(Debug)]
pub enum Came {
    Whole(Bytes),
    /// It is longer than the limit: what was read, and the rest.
    Longer(Bytes, Incoming),
}

/// The whole body, if it is at most `limit` bytes and arrives within `patience`. Where a length past the limit is
/// declared, nothing is read, so that no `100 Continue` invites it.
pub async fn read(mut body: Arriving, limit: usize, patience: Duration) -> Result<Came, BodyError> {
    if body.is_end_stream() {
        return Ok(Came::Whole(Bytes::new()));
    }
    if body.size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
        return Ok(Came::Longer(Bytes::new(), body.into_inner()));
    }
    match tokio::time::timeout(patience, read_all(&mut body, limit)).await {
        Ok(Ok(bytes)) if bytes.len() > limit => Ok(Came::Longer(bytes, body.into_inner())),
        Ok(result) => result.map(Came::Whole),
        Err(_elapsed) => Err(BodyError::Timeout(patience)),
    }
}

/// The whole body; or, where it is longer than `limit`, as much as it took to see that.
async fn read_all(body: &mut Arriving, limit: usize) -> Result<Bytes, BodyError> {
    let declared = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(BodyError::Broken)?.into_data() else { continue };
        let length = first.len() + whole.len() + piece.len();
        if whole.is_empty() && first.is_empty() {
            first = piece; // most bodies come in one piece: no copy
        } else {
            if whole.is_empty() {
                // Not more than what has come by a power of two: a declared length is only a promise.
                whole.reserve(declared.unwrap_or(length).min(length.saturating_mul(8)));
                whole.extend_from_slice(&std::mem::take(&mut first));
            }
            whole.extend_from_slice(&piece);
        }
        if length > limit {
            break;
        }
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}
