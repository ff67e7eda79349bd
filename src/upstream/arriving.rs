//! A body as it comes off the wire, which ends only where its sender ended it. Over HTTP/2 that is told by END_STREAM:
//! hyper also ends a body where its stream was reset, or its connection left, with NO_ERROR, so that a part of it would
//! pass for the whole.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::outcome::Cause;

/// A request's or an answer's body; an error, not the end, where the sender left it off.
#[derive(Debug)]
pub struct Arriving {
    incoming: Incoming,
    http2: bool,
    /// Everything came, whatever becomes of the stream from here on.
    whole: bool,
}

/// The stream was left with "no error" in the middle of a body.
#[derive(Debug, thiserror::Error)]
#[error("the stream was left before its end")]
struct LeftOff;

impl Arriving {
    /// The body of a message that came in this version.
    pub fn new(incoming: Incoming, version: Version) -> Self {
        Self { incoming, http2: version == Version::HTTP_2, whole: false }
    }

    /// What of it has not been read yet.
    pub fn into_inner(self) -> Incoming {
        self.incoming
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = Cause;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cause>>> {
        if self.whole {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        if self.http2 {
            self.whole = self.incoming.is_end_stream();
        } else if frame.is_none() {
            // What was declared has come; chunks tell their end themselves.
            self.whole = self.incoming.size_hint().lower() == 0;
        }
        if frame.is_none() && !self.whole {
            return Poll::Ready(Some(Err(LeftOff.into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Cause::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.whole || self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
