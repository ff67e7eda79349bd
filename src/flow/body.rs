//! Reads a request's body up to its bound, in time, as far as there is room.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::Notify;

pub use super::decode::decoded;
use super::room::{NoRoom, Room};
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
    /// More encodings on top of each other than any sender makes: answer 415.
    #[error("the body is encoded more than {0} times over")]
    TooManyLayers(usize),
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
    /// All bodies together leave no room for it, or it had to give way: the same.
    Crowded(Bytes, Incoming),
}

/// How far reading went.
enum End {
    Whole,
    Longer,
    Crowded,
}

/// The whole body, if it is at most `limit` bytes and arrives within `patience`. Where a length past the limit is
/// declared, nothing is read, so that no `100 Continue` invites it.
///
/// # Errors
/// [`BodyError::Timeout`], or [`BodyError::Broken`].
pub async fn read(
    mut body: Arriving,
    limit: usize,
    patience: Duration,
    room: &mut Room,
) -> Result<Came, BodyError> {
    if body.is_end_stream() {
        return Ok(Came::Whole(Bytes::new()));
    }
    if body.size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
        return Ok(Came::Longer(Bytes::new(), body.into_inner()));
    }
    match tokio::time::timeout(patience, read_all(&mut body, limit, room)).await {
        Ok(Ok((bytes, End::Whole))) => Ok(Came::Whole(bytes)),
        Ok(Ok((bytes, End::Longer))) => Ok(Came::Longer(bytes, body.into_inner())),
        Ok(Ok((bytes, End::Crowded))) => Ok(Came::Crowded(bytes, body.into_inner())),
        Ok(Err(error)) => Err(error),
        Err(_elapsed) => Err(BodyError::Timeout(patience)),
    }
}

/// The whole body; or, where it is longer than `limit` or has to give way, what had come by then.
async fn read_all(body: &mut Arriving, limit: usize, room: &mut Room) -> Result<(Bytes, End), BodyError> {
    let declared = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
    let mut read = Pieces { declared, first: Bytes::new(), whole: BytesMut::new() };
    let mut gives_way: Option<Arc<Notify>> = None;
    loop {
        let frame = match &gives_way {
            None => body.frame().await,
            Some(gives_way) => tokio::select! {
                biased;
                frame = body.frame() => frame,
                () = gives_way.notified() => return Ok((read.bytes(), End::Crowded)),
            },
        };
        let Some(frame) = frame else { break };
        let Ok(piece) = frame.map_err(BodyError::Broken)?.into_data() else { continue };
        let found = room.grow(piece.len());
        read.take(piece);
        if read.length() > limit {
            return Ok((read.bytes(), End::Longer));
        }
        if found == Err(NoRoom) {
            return Ok((read.bytes(), End::Crowded));
        }
        if body.is_end_stream() {
            break; // most bodies come in one piece, and never wait in line
        }
        if gives_way.is_none() {
            gives_way = Some(room.wait_for_more());
        }
    }
    let end = if room.complete().is_ok() { End::Whole } else { End::Crowded };
    Ok((read.bytes(), end))
}

/// What has come of a body.
struct Pieces {
    declared: Option<usize>,
    first: Bytes,
    whole: BytesMut,
}

impl Pieces {
    fn length(&self) -> usize {
        self.first.len() + self.whole.len()
    }

    fn take(&mut self, piece: Bytes) {
        if self.length() == 0 {
            self.first = piece; // most bodies come in one piece: no copy
            return;
        }
        if self.whole.is_empty() {
            // Not more than what has come by a power of two: a declared length is only a promise.
            let length = self.first.len() + piece.len();
            self.whole.reserve(self.declared.unwrap_or(length).min(length.saturating_mul(8)));
            self.whole.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.whole.extend_from_slice(&piece);
    }

    fn bytes(self) -> Bytes {
        if self.whole.is_empty() { self.first } else { self.whole.freeze() }
    }
}
