//! Watches one connection: what it is doing, since when, and until when it may. It has no timer of its own; the
//! connection asks it now and then, so that a request costs no timer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::clock::monotonic;
use crate::config::Limits;

/// Longest time that a peer may leave what we send unread.
const UNREAD_MAX: Duration = Duration::from_secs(60);

/// After a refusal, how long and how much we go on reading, so that the peer can read why before a reset.
const LINGER_MAX: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 64 << 20;

/// How often a busy connection is looked at once the gateway stops.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// What a connection is doing. Times are milliseconds since it began, plus one; zero means "not now".
#[derive(Debug)]
pub(super) struct Watch {
    start: Instant,
    in_flight: AtomicU32,
    requests: AtomicU64,
    http2: AtomicBool,
    /// Since when no request is under way.
    free_since: AtomicU64,
    /// Since when a head is coming in.
    head_since: AtomicU64,
    /// Since when the peer takes nothing of what we write.
    stuck_since: AtomicU64,
    /// The last answer was a refusal, whose request may still be coming in.
    refused: AtomicBool,
    /// The gateway stops: whatever is answered now is the connection's last answer.
    leaving: AtomicBool,
}

/// What is to be done about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// Nothing before then.
    LookAgain(Instant),
    /// It idled long enough: close it in good order.
    Finish,
    /// It is too slow: drop it.
    Drop(&'static str),
}

/// What a connection can give to whoever waits for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// A request is under way.
    None,
    /// Kept alive for a next request: it may end in good order.
    Idle,
    /// No request has come yet, or not the whole head of the next one.
    Fresh,
}

impl Watch {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            start: monotonic(),
            in_flight: AtomicU32::new(0),
            requests: AtomicU64::new(0),
            http2: AtomicBool::new(false),
            free_since: AtomicU64::new(1),
            head_since: AtomicU64::new(0),
            stuck_since: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
        })
    }

    /// A request's head is complete. It is under way until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>, http2: bool) -> UnderWay {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.http2.store(http2, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
        UnderWay(Arc::clone(self))
    }

    /// Until when the first head has to be there, counted from the connection's beginning.
    pub(super) fn first_head_due(&self, limits: &Limits) -> Instant {
        self.start + limits.header_timeout
    }

    /// When to look first: by then the first head has to be there, or the first request may be long over.
    pub(super) fn first_look(&self, limits: &Limits) -> Instant {
        self.start + limits.header_timeout.min(limits.idle_timeout)
    }

    pub(super) fn answered(&self, status: http::StatusCode) {
        let unread = [http::StatusCode::NOT_IMPLEMENTED, http::StatusCode::SERVICE_UNAVAILABLE];
        let refused = status.is_client_error() || unread.contains(&status);
        self.refused.store(refused, Ordering::Relaxed);
    }

    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    pub(super) fn room(&self) -> Room {
        if self.in_flight.load(Ordering::Relaxed) > 0 {
            return Room::None;
        }
        let fresh = self.requests.load(Ordering::Relaxed) == 0;
        // HTTP/2 sends frames that are no heads.
        let head = self.head_since.load(Ordering::Relaxed) != 0 && !self.http2.load(Ordering::Relaxed);
        if fresh || head { Room::Fresh } else { Room::Idle }
    }

    /// When a connection of a gateway that stops since `stopped` may be closed with nobody's request in it; a later
    /// look may tell a later time. HTTP/2 says goodbye by itself, at once. HTTP/1.1 can't: whoever keeps the connection
    /// may be sending on it just now, so it waits for that request or, for `linger`, for none.
    pub(super) fn may_go(&self, stopped: Instant, linger: Duration) -> Instant {
        let now = monotonic();
        if self.http2.load(Ordering::Relaxed) {
            return now;
        }
        let busy = self.in_flight.load(Ordering::Relaxed) > 0 || self.head_since.load(Ordering::Relaxed) != 0;
        if busy {
            return now + LOOK_AGAIN;
        }
        let free = self.start + Duration::from_millis(self.free_since.load(Ordering::Relaxed));
        free.max(stopped) + linger
    }

    pub(super) fn advice(&self, limits: &Limits) -> Advice {
        let now = monotonic();
        let since = |cell: &AtomicU64| match cell.load(Ordering::Relaxed) {
            0 => None,
            millis => Some(self.start + Duration::from_millis(millis - 1)),
        };
        if since(&self.stuck_since).is_some_and(|since| since + UNREAD_MAX <= now) {
            return Advice::Drop("the peer reads nothing");
        }
        let again = now + limits.header_timeout.min(limits.idle_timeout);
        if self.in_flight.load(Ordering::Relaxed) > 0 {
            return Advice::LookAgain(again);
        }
        // The first head counts from the beginning; HTTP/2 sends frames that are no heads.
        let first = self.requests.load(Ordering::Relaxed) == 0;
        let head = if first { Some(self.start) } else { since(&self.head_since) };
        if let Some(head) = head.filter(|_| first || !self.http2.load(Ordering::Relaxed)) {
            let due = head + limits.header_timeout;
            return if due <= now {
                Advice::Drop("the head of a request took too long")
            } else {
                Advice::LookAgain(due)
            };
        }
        let due = since(&self.free_since).unwrap_or(now) + limits.idle_timeout;
        if due <= now { Advice::Finish } else { Advice::LookAgain(due.min(again)) }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    fn has_read(&self) {
        if self.in_flight.load(Ordering::Relaxed) == 0 && self.head_since.load(Ordering::Relaxed) == 0 {
            self.head_since.store(self.now(), Ordering::Relaxed);
        }
    }

    fn has_written(&self, moved: bool) {
        let stuck = self.stuck_since.load(Ordering::Relaxed) != 0;
        if moved && stuck {
            self.stuck_since.store(0, Ordering::Relaxed);
        } else if !moved && !stuck {
            self.stuck_since.store(self.now(), Ordering::Relaxed);
        }
    }
}

/// A request under way: from its head to the end of its answer.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Watch>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.free_since.store(self.0.now(), Ordering::Relaxed);
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A socket that tells its watch what moves.
#[derive(Debug)]
pub(super) struct Watched {
    stream: TcpStream,
    watch: Arc<Watch>,
    ended: bool,
    linger: Option<Linger>,
}

#[derive(Debug)]
struct Linger {
    until: Pin<Box<Sleep>>,
    bytes: usize,
}

impl Watched {
    pub(super) fn new(stream: TcpStream, watch: Arc<Watch>) -> Self {
        Self { stream, watch, ended: false, linger: None }
    }

    /// The first byte that the peer sent, left where it is.
    pub(super) async fn first_byte(&self) -> io::Result<u8> {
        let mut first = [0];
        match self.stream.peek(&mut first).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(first[0]),
        }
    }

    /// Whether what comes begins as no HTTP/2 can, left where it is; waits for the first bytes. Where they tell nothing yet,
    /// it isn't said to.
    pub(super) async fn begins_http1(&self) -> bool {
        let mut first = [0; 3];
        matches!(self.stream.peek(&mut first).await, Ok(3) if first != *b"PRI")
    }

    /// Reads and forgets until the peer has ended, or long enough.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let linger = self
            .linger
            .get_or_insert_with(|| Linger { until: Box::pin(tokio::time::sleep(LINGER_MAX)), bytes: 0 });
        let mut scratch = [0; 16 * 1024];
        while linger.bytes < LINGER_BYTES_MAX && linger.until.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => linger.bytes += buffer.filled().len(),
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(())
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        if buffer.filled().len() > before {
            self.watch.has_read();
        } else {
            self.ended = true;
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch.has_written(result.is_ready());
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.watch.has_written(result.is_ready());
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        }
        if self.watch.refused.load(Ordering::Relaxed) && !self.ended {
            ready!(self.poll_linger(cx));
        }
        Poll::Ready(Ok(()))
    }
}
