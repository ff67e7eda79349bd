//! The one body type of requests to the app and of answers to senders: bytes in hand, or a stream whose pauses
//! are bounded. The variants are few and known; the stream is boxed, since room for 32 requests with their bodies is kept
//! twice for each connection to an app.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::Sleep;

use super::arriving::Arriving;
use super::outcome::Cause;
use super::pool::Lease;
use super::trailers;
use super::window::Window;
use crate::clock::monotonic;

/// Whatever must live exactly as long as a body does, such as a listener's count of what is in flight.
pub type Held = Box<dyn Any + Send + Sync>;

/// A request's or an answer's body.
#[derive(Default)]
pub struct Body {
    kind: Kind,
    held: Option<Held>,
}

#[derive(Default)]
enum Kind {
    #[default]
    Empty,
    /// Empty, without saying so beforehand.
    Absent,
    Full(Bytes),
    Stream(Box<Stream>),
}

/// Why a streamed body ended early.
#[derive(Debug, thiserror::Error)]
pub enum BodyFault {
    #[error("the body broke off")]
    Broken(#[source] Cause),
    #[error("nothing of the body came for {0:?}")]
    Idle(Duration),
}

struct Stream {
    /// What was read of it before.
    read: Bytes,
    incoming: Arriving,
    /// Longest pause between two pieces.
    idle: Duration,
    /// Armed only while nothing is there.
    pause: Option<Pin<Box<Sleep>>>,
    progress: Option<Arc<Progress>>,
    window: Arc<Window>,
    /// The app's connection, which is free again when the body ends.
    _lease: Option<Lease>,
}

impl Body {
    pub fn empty() -> Self {
        Self::default()
    }

    /// The body that an answer's `Content-Length` speaks of without bringing it (304): the server would drop the
    /// header next to a body that it knows to be empty.
    pub fn absent() -> Self {
        Self { kind: Kind::Absent, held: None }
    }

    /// Passes a body on as it comes, as long as it never pauses longer than `idle`.
    pub fn stream(incoming: Arriving, idle: Duration) -> Self {
        Self::of(Bytes::new(), incoming, idle, None, None)
    }

    /// The app's answer, holding its connection until it ends.
    pub(super) fn leased(incoming: Arriving, idle: Duration, lease: Lease) -> Self {
        Self::of(Bytes::new(), incoming, idle, None, Some(lease))
    }

    /// The sender's body, what was read of it before and the rest, telling how far it is.
    pub(super) fn watched(read: Bytes, incoming: Arriving, idle: Duration, progress: Arc<Progress>) -> Self {
        Self::of(read, incoming, idle, Some(progress), None)
    }

    fn of(
        read: Bytes,
        incoming: Arriving,
        idle: Duration,
        progress: Option<Arc<Progress>>,
        lease: Option<Lease>,
    ) -> Self {
        if read.is_empty() && incoming.is_end_stream() {
            return Self::empty(); // a lease given back here is ready as soon as hyper is
        }
        Self {
            kind: Kind::Stream(Box::new(Stream {
                read,
                incoming,
                idle,
                pause: None,
                progress,
                window: Arc::default(),
                _lease: lease,
            })),
            held: None,
        }
    }

    /// The same once more, where all of it is in hand.
    pub(super) fn again(&self) -> Option<Self> {
        match &self.kind {
            Kind::Empty => Some(Self::empty()),
            Kind::Full(bytes) => Some(bytes.clone().into()),
            Kind::Absent | Kind::Stream(_) => None,
        }
    }

    /// Keeps `held` alive until the body has been sent or given up.
    pub fn hold(&mut self, held: Held) {
        self.held = Some(held);
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self { kind: if bytes.is_empty() { Kind::Empty } else { Kind::Full(bytes) }, held: None }
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        match &mut self.kind {
            Kind::Empty | Kind::Absent => Poll::Ready(None),
            Kind::Full(bytes) => {
                let frame = Frame::data(std::mem::take(bytes));
                self.kind = Kind::Empty;
                Poll::Ready(Some(Ok(frame)))
            }
            Kind::Stream(stream) => {
                let frame = ready!(stream.poll(cx));
                if !matches!(frame, Some(Ok(_))) {
                    self.kind = Kind::Empty; // gives the connection back at once
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Empty => true,
            Kind::Absent => false,
            Kind::Full(bytes) => bytes.is_empty(),
            Kind::Stream(stream) => stream.read.is_empty() && stream.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Absent => SizeHint::default(),
            Kind::Full(bytes) => SizeHint::with_exact(u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
            Kind::Stream(stream) => stream.size_hint(),
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.kind {
            Kind::Empty | Kind::Absent => f.write_str("Empty"),
            Kind::Full(bytes) => write!(f, "Full({} bytes)", bytes.len()),
            Kind::Stream(_) => f.write_str("Stream"),
        }
    }
}

impl Stream {
    fn size_hint(&self) -> SizeHint {
        let mut hint = self.incoming.size_hint();
        let read = u64::try_from(self.read.len()).unwrap_or(u64::MAX);
        match hint.exact() {
            Some(rest) => SizeHint::with_exact(rest.saturating_add(read)),
            None => {
                hint.set_lower(hint.lower().saturating_add(read));
                hint
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        ready!(self.window.poll_room(cx));
        if !self.read.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(self.window.counted(std::mem::take(&mut self.read))))));
        }
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(frame) => {
                self.pause = None;
                if let Some(progress) = &self.progress {
                    progress.note();
                }
                let window = &self.window;
                let fit = |frame| fit(frame).map_data(|bytes| window.counted(bytes));
                Poll::Ready(frame.map(|frame| frame.map(fit).map_err(BodyFault::Broken)))
            }
            Poll::Pending => {
                let idle = self.idle;
                let pause = self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(idle)));
                ready!(pause.as_mut().poll(cx));
                Poll::Ready(Some(Err(BodyFault::Idle(idle))))
            }
        }
    }
}

/// A piece of a body as it is; trailers without what headers lose too.
fn fit(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    if let Some(fields) = frame.trailers_mut() {
        trailers::fit_trailers(fields);
    }
    frame
}

/// When a sender's body last moved, so that the app's time to answer counts from the end of it.
#[derive(Debug)]
pub(super) struct Progress {
    start: Instant,
    last_millis: AtomicU64,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { start: monotonic(), last_millis: AtomicU64::new(0) }
    }

    fn note(&self) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_millis.store(millis, Ordering::Relaxed);
    }

    pub(super) fn last(&self) -> Instant {
        self.start + Duration::from_millis(self.last_millis.load(Ordering::Relaxed))
    }
}
