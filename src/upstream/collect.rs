//! Reads a body to its end, up to a bound. A body that came in one piece is not copied.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

use super::arriving::Arriving;
use super::outcome::UpstreamError;

/// The whole of an app's answer; an error if it breaks off or is longer than `bytes_max`.
pub(super) async fn collect(mut body: Arriving, bytes_max: usize) -> Result<Bytes, UpstreamError> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(UpstreamError::Broken)?;
        let Ok(piece) = frame.into_data() else { continue };
        if first.len() + rest.len() + piece.len() > bytes_max {
            return Err(UpstreamError::TooLong(bytes_max));
        }
        if first.is_empty() {
            first = piece;
        } else {
            rest.extend_from_slice(&piece);
        }
    }
    if rest.is_empty() {
        return Ok(first);
    }
    let mut whole = BytesMut::with_capacity(first.len() + rest.len());
    whole.extend_from_slice(&first);
    whole.extend_from_slice(&rest);
    Ok(whole.freeze())
}
