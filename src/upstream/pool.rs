//! Connections to one app, kept alive: idle ones for HTTP/1.1, a shared one for HTTP/2. A request that a
//! connection hands back unwritten may be sent again; `spare` says what else may.
//!
//! Not bounded by itself: there are as many connections in use as requests under way, which the listener bounds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};

use super::arriving::Arriving;
use super::body::Body;
use super::early;
use crate::clock::monotonic;

/// How long a connection may wait for its next request. Short: an app that closes an idle connection at the
/// moment we write to it leaves us not knowing whether the request was seen. Common servers wait 2 s or longer.
const IDLE_MAX: Duration = Duration::from_millis(1500);

/// After this a connection takes no new request, so that a name's new address is noticed under steady load too.
const AGE_MAX: Duration = Duration::from_secs(25);

/// Idle connections kept for one app by one worker.
const IDLE_CONNECTIONS_MAX: usize = 512;

/// A connection that was idle this long may have been closed without our task having run since.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// The connections of one worker to one app.
#[derive(Default)]
pub(super) struct Pool {
    idle: Mutex<Vec<Idle>>,
    shared: Mutex<Option<(http2::SendRequest<Body>, Instant)>>,
    /// Held while the shared connection is being made, so that a burst makes one.
    pub(super) making: tokio::sync::Mutex<()>,
    /// What the latest handshake agreed on, where the app chooses: HTTP/1.1, of which each request needs a connection.
    http1: AtomicBool,
    /// When making a connection failed last, and why.
    failure: Mutex<Option<(Instant, String)>>,
}

struct Idle {
    sender: http1::SendRequest<Body>,
    made: Instant,
    since: Instant,
}

impl Pool {
    /// A kept connection that was alive when last heard of.
    pub(super) async fn take(self: &Arc<Self>) -> Option<Lease> {
        loop {
            let (idle, waited) = self.take_idle()?;
            if waited >= LOOK_AGAIN_AFTER {
                tokio::task::yield_now().await; // lets the connection's task see an end that has arrived
                if !idle.sender.is_ready() {
                    continue;
                }
            }
            return Some(Lease::kept(self, idle));
        }
    }

    /// The most recently used one that is ready; what is closed, too old or too long idle goes.
    fn take_idle(&self) -> Option<(Idle, Duration)> {
        let now = monotonic();
        let mut idle = lock(&self.idle);
        let mut index = idle.len();
        while index > 0 {
            index -= 1;
            let waited = now.saturating_duration_since(idle[index].since);
            if waited > IDLE_MAX {
                idle.drain(..=index); // older ones have waited longer
                return None;
            }
            let candidate = &idle[index];
            if candidate.sender.is_closed() || now.saturating_duration_since(candidate.made) > AGE_MAX {
                idle.remove(index);
            } else if candidate.sender.is_ready() {
                return Some((idle.remove(index), waited));
            }
        }
        None
    }

    fn give_back(&self, sender: http1::SendRequest<Body>, made: Instant) {
        if sender.is_closed() {
            return;
        }
        let mut idle = lock(&self.idle);
        if idle.len() >= IDLE_CONNECTIONS_MAX {
            idle.remove(0);
        }
        idle.push(Idle { sender, made, since: monotonic() });
    }

    /// The shared HTTP/2 connection, if it is there and takes requests.
    pub(super) fn shared(&self) -> Option<http2::SendRequest<Body>> {
        let mut shared = lock(&self.shared);
        match &*shared {
            Some((sender, made)) if sender.is_ready() && made.elapsed() < AGE_MAX => Some(sender.clone()),
            Some(_) => {
                *shared = None;
                None
            }
            None => None,
        }
    }

    pub(super) fn share(&self, sender: http2::SendRequest<Body>) {
        *lock(&self.shared) = Some((sender, monotonic()));
    }

    pub(super) fn agreed(&self, http2: bool) {
        self.http1.store(!http2, Ordering::Relaxed);
    }

    pub(super) fn agrees_on_http1(&self) -> bool {
        self.http1.load(Ordering::Relaxed)
    }

    pub(super) fn failed(&self, cause: String) {
        *lock(&self.failure) = Some((monotonic(), cause));
    }

    /// Why the latest try failed, if that was after `asked`.
    pub(super) fn failed_since(&self, asked: Instant) -> Option<String> {
        lock(&self.failure).as_ref().filter(|(at, _)| *at > asked).map(|(_, cause)| cause.clone())
    }

    /// Lets go of every connection; requests under way keep theirs.
    pub(super) fn clear(&self) {
        lock(&self.idle).clear();
        *lock(&self.shared) = None;
    }
}

/// The right to use an HTTP/1.1 connection; given up, the connection is kept for the next request.
pub(super) struct Lease {
    sender: Option<http1::SendRequest<Body>>,
    made: Instant,
    /// It has served a request before.
    kept: bool,
    pool: Arc<Pool>,
}

impl Lease {
    pub(super) fn fresh(pool: &Arc<Pool>, sender: http1::SendRequest<Body>) -> Self {
        Self { sender: Some(sender), made: monotonic(), kept: false, pool: Arc::clone(pool) }
    }

    fn kept(pool: &Arc<Pool>, idle: Idle) -> Self {
        Self { sender: Some(idle.sender), made: idle.made, kept: true, pool: Arc::clone(pool) }
    }

    /// Whether the app may have been about to close the connection.
    pub(super) fn is_kept(&self) -> bool {
        self.kept
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take() {
            self.pool.give_back(sender, self.made);
        }
    }
}

/// A way to send one request.
pub(super) enum Connection {
    Http1(Lease),
    Http2(http2::SendRequest<Body>),
}

/// A request that failed: handed back if it was provably not written.
pub(super) struct SendFault {
    pub(super) error: hyper::Error,
    pub(super) unsent: Option<Request<Body>>,
}

impl SendFault {
    /// The app said that it has not processed the request, though it may have read it: RFC 9113, 8.7. A stream that it
    /// refused, or one above the last that its GOAWAY counts.
    pub(super) fn is_refused(&self) -> bool {
        let cause =
            std::error::Error::source(&self.error).and_then(|cause| cause.downcast_ref::<h2::Error>());
        cause.is_some_and(|cause| {
            let refused = cause.is_reset() && cause.reason() == Some(h2::Reason::REFUSED_STREAM);
            cause.is_remote() && (refused || cause.is_go_away())
        })
    }

    /// The connection ended before an answer had come.
    pub(super) fn is_end(&self) -> bool {
        let cause = std::error::Error::source(&self.error);
        let cause = cause.and_then(|cause| cause.downcast_ref::<std::io::Error>());
        self.error.is_incomplete_message() || cause.is_some_and(|cause| early::is_end(cause.kind()))
    }
}

impl From<TrySendError<Request<Body>>> for SendFault {
    fn from(mut fault: TrySendError<Request<Body>>) -> Self {
        let unsent = fault.take_message();
        Self { error: fault.into_error(), unsent }
    }
}

impl Connection {
    pub(super) fn version(&self) -> http::Version {
        match self {
            Self::Http1(_) => http::Version::HTTP_11,
            Self::Http2(_) => http::Version::HTTP_2,
        }
    }

    /// Sends the request; the lease that comes back must be held until the answer's body ends.
    pub(super) async fn send(
        self,
        request: Request<Body>,
    ) -> Result<(Response<Arriving>, Option<Lease>), SendFault> {
        match self {
            Self::Http1(mut lease) => {
                let sender = lease.sender.as_mut().expect("a lease holds its connection until it is dropped");
                let answer = sender.try_send_request(request).await?;
                Ok((arriving(answer), Some(lease)))
            }
            Self::Http2(mut sender) => Ok((arriving(sender.try_send_request(request).await?), None)),
        }
    }
}

fn arriving(answer: Response<Incoming>) -> Response<Arriving> {
    let version = answer.version();
    answer.map(|incoming| Arriving::new(incoming, version))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
