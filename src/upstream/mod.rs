//! The app behind the gateway: a pooled HTTP client, and what an attempt to reach it meant. Knows no ledger.
//! Follows no redirect, decodes nothing, and adds no header of its own.

mod arriving;
mod body;
mod collect;
mod connect;
mod early;
mod forwarded;
pub mod headers;
mod outcome;
mod pool;
mod sips;
mod spare;
pub mod trailers;
mod url;
mod window;

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, Response, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio_util::task::TaskTracker;

pub use arriving::Arriving;
pub use body::{Body, BodyFault, Held};
pub use outcome::{Cause, Outcome, UpstreamError, told};
pub use sips::Sips;
pub use url::{public_url, whole_url};

use crate::clock::monotonic;
use crate::config::{Limits, Target};
use crate::tls::{self, AppFiles, Apps};
use body::Progress;
use connect::Connector;
use pool::{Connection, Lease, Pool};
use spare::Spare;

/// How long an app may take to begin its answer to a request that passes through.
const FIRST_BYTE_MAX: Duration = Duration::from_secs(120);

/// Longest pause within a body that passes through, in either direction.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// How often a request is tried that was handed back unwritten, or may go out again otherwise.
const TRIES_MAX: usize = 3;

/// One worker's connections to every app. Made on the worker's runtime.
pub struct Upstream {
    connector: Connector,
    /// Few, and looked through for each request: that costs less than hashing what tells them apart.
    pools: Mutex<Vec<(PoolKey, Arc<Pool>)>>,
}

/// What makes two targets share connections; their prefixes may differ.
struct PoolKey {
    authority: http::uri::Authority,
    secure: bool,
    http2: bool,
    files: Option<Arc<AppFiles>>,
    server_name: Option<Arc<str>>,
}

impl PoolKey {
    fn of(target: &Target) -> Self {
        Self {
            authority: target.authority.clone(),
            secure: target.is_secure(),
            http2: target.http2,
            files: target.files.clone(),
            server_name: target.server_name.clone(),
        }
    }

    fn is_of(&self, target: &Target) -> bool {
        self.authority == target.authority
            && self.secure == target.is_secure()
            && self.http2 == target.http2
            && self.files == target.files
            && self.server_name == target.server_name
    }
}

/// A request that got no answer, and what is known about it.
struct Failed {
    error: UpstreamError,
    never_sent: bool,
}

impl Failed {
    fn never_sent(error: UpstreamError) -> Self {
        Self { error, never_sent: true }
    }

    fn unknown(error: UpstreamError) -> Self {
        Self { error, never_sent: false }
    }
}

impl Upstream {
    pub fn new(limits: &Limits, tls: Arc<Apps>) -> Self {
        let connector = Connector { connect_timeout: limits.connect_timeout, tls, tasks: TaskTracker::new() };
        Self { connector, pools: Mutex::default() }
    }

    /// Sends a request whose body is in hand and collects the whole answer, all within `timeout`. The caller has
    /// made the headers fit ([`headers::to_app`]); the answer's are fit for the sender.
    pub async fn forward(
        &self,
        target: &Target,
        request: Request<Bytes>,
        timeout: Duration,
        answer_bytes_max: usize,
    ) -> Outcome {
        let (mut parts, bytes) = request.into_parts();
        headers::set_length(&mut parts.headers, bytes.len());
        let request = Request::from_parts(parts, Body::from(bytes));
        // The two halves tell apart what a timeout met: before the first write nothing was sent.
        let mut clock = pin!(tokio::time::sleep(timeout));
        let mut sent = false;
        let exchange = async {
            let (answer, lease) = self.send(target, request, Purpose::Event, &mut sent).await?;
            let (mut parts, incoming) = answer.into_parts();
            if is_switch(parts.status) {
                return Err(Failed::unknown(UpstreamError::Switched)); // no final answer: none can follow
            }
            let bytes = collect::collect(incoming, answer_bytes_max).await.map_err(Failed::unknown)?;
            drop(lease);
            fit_for_sender(&mut parts);
            Ok::<_, Failed>(Response::from_parts(parts, bytes))
        };
        let result = tokio::select! {
            biased;
            result = exchange => result,
            () = &mut clock => Err(Failed { error: UpstreamError::Timeout(timeout), never_sent: !sent }),
        };
        match result {
            Ok(answer) => Outcome::Answered(answer),
            Err(Failed { error, never_sent: true }) => Outcome::NeverSent(error),
            Err(Failed { error, never_sent: false }) => Outcome::Unknown(error),
        }
    }

    /// Passes a request of any size through, `read` being what was read of its body before, and hands the answer on as it
    /// comes, in bounded memory. The whole has no deadline, its parts have: connecting, the first byte of the answer, and
    /// each pause of either body.
    pub async fn stream(
        &self,
        target: &Target,
        read: Bytes,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, UpstreamError> {
        let progress = Arc::new(Progress::new());
        let watched = Arc::clone(&progress);
        let passing = trailers::takes_trailers(request.headers(), request.version());
        let version = request.version();
        let request =
            request.map(|body| Body::watched(read, Arriving::new(body, version), PAUSE_MAX, watched));
        let mut sent = false;
        let mut exchange =
            pin!(self.send(target, request, Purpose::Passing { trailers: passing }, &mut sent));
        let (answer, lease) = loop {
            let due = tokio::time::Instant::from_std(progress.last() + FIRST_BYTE_MAX);
            tokio::select! {
                biased;
                result = &mut exchange => break result.map_err(|failed| failed.error)?,
                () = tokio::time::sleep_until(due) => {
                    if tokio::time::Instant::from_std(progress.last() + FIRST_BYTE_MAX) <= due {
                        return Err(UpstreamError::Timeout(FIRST_BYTE_MAX));
                    }
                }
            }
        };
        let (mut parts, incoming) = answer.into_parts();
        let upgrade = headers::upgrade(&parts.headers).filter(|_| is_switch(parts.status));
        let announced = if passing { trailers::announced(&parts.headers) } else { Vec::new() };
        fit_for_sender(&mut parts);
        trailers::announce(&mut parts.headers, announced);
        if let Some(protocol) = upgrade {
            headers::set_upgrade(&mut parts.headers, protocol);
        }
        let body = match lease {
            Some(lease) => Body::leased(incoming, PAUSE_MAX, lease),
            None => Body::stream(incoming, PAUSE_MAX),
        };
        Ok(Response::from_parts(parts, body))
    }

    /// Lets go of idle connections, before a stop.
    pub fn close(&self) {
        for (_, pool) in &*self.pools.lock().unwrap_or_else(PoisonError::into_inner) {
            pool.clear();
        }
    }

    /// Sends a request on a kept or a new connection. It goes out at most once: another try follows only where
    /// the connection handed the request back, or where it may go out again ([`Spare`]).
    async fn send(
        &self,
        target: &Target,
        mut request: Request<Body>,
        purpose: Purpose,
        sent: &mut bool,
    ) -> Result<(Response<Arriving>, Option<Lease>), Failed> {
        let pool = self.pool(target);
        let asked = Asked { uri: request.uri().clone(), host: request.headers().get(HOST).cloned(), purpose };
        let mut tries = 0;
        loop {
            tries += 1;
            let connection = self.connection(target, &pool, tries == TRIES_MAX).await;
            let connection = connection.map_err(|cause| Failed::never_sent(UpstreamError::Connect(cause)))?;
            prepare(&mut request, target, &asked, connection.version())
                .map_err(|cause| Failed::never_sent(UpstreamError::Broken(cause)))?;
            let spare = Spare::of(&request, &connection, matches!(purpose, Purpose::Passing { .. }));
            *sent = true;
            let mut fault = match connection.send(request).await {
                Ok((answer, _)) if !headers::is_plainly_framed(answer.headers()) => {
                    let cause = "its answer is in a transfer coding that is not known here";
                    return Err(Failed::unknown(UpstreamError::Broken(cause.into())));
                }
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            let never_sent = fault.unsent.is_some() || fault.is_refused();
            if tries < TRIES_MAX
                && let Some(again) =
                    fault.unsent.take().or_else(|| spare.and_then(|spare| spare.after(&fault)))
            {
                *sent = false;
                request = again;
                continue;
            }
            let error = UpstreamError::Broken(fault.error.into());
            return Err(match never_sent || tls::is_refusal(&error) {
                true => Failed::never_sent(error),
                false => Failed::unknown(error),
            });
        }
    }

    async fn connection(&self, target: &Target, pool: &Arc<Pool>, fresh: bool) -> Result<Connection, Cause> {
        if !fresh {
            if let Some(sender) = pool.shared() {
                return Ok(Connection::Http2(sender));
            }
            if !target.http2
                && let Some(lease) = pool.take().await
            {
                return Ok(Connection::Http1(lease));
            }
        }
        // Boxed, as it is rare and large: a request's future would carry the room for a handshake with it.
        let connecting = Box::pin(self.connector.connect(target, pool));
        if !target.http2 && (!target.is_secure() || pool.agrees_on_http1()) {
            return connecting.await;
        }
        let asked = monotonic();
        let making = pool.making.lock().await;
        match pool.shared() {
            Some(sender) if !fresh => return Ok(Connection::Http2(sender)),
            Some(_) | None => {}
        }
        if !target.http2 && pool.agrees_on_http1() {
            drop(making); // the one before us has learnt that each needs a connection of its own
            return connecting.await;
        }
        // An app that is away costs those who wait here one failure, not one after the other.
        if let Some(cause) = pool.failed_since(asked) {
            return Err(cause.into());
        }
        connecting.await.inspect_err(|cause| pool.failed(told(&**cause)))
    }

    fn pool(&self, target: &Target) -> Arc<Pool> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, pool)) = pools.iter().find(|(key, _)| key.is_of(target)) {
            return Arc::clone(pool);
        }
        let pool = Arc::<Pool>::default();
        pools.push((PoolKey::of(target), Arc::clone(&pool)));
        pool
    }
}

/// What a request is sent for.
#[derive(Clone, Copy)]
enum Purpose {
    /// Of an event: whether the app has seen it matters.
    Event,
    /// It passes through. `trailers`: those of the answer go on to the sender.
    Passing { trailers: bool },
}

/// What the sender asked for, kept for another try.
struct Asked {
    uri: http::Uri,
    host: Option<HeaderValue>,
    purpose: Purpose,
}

/// Makes a request fit for the connection it goes out on: the app's path, and the sender's `Host`, which HTTP/2
/// says as `:authority`.
fn prepare(
    request: &mut Request<Body>,
    target: &Target,
    asked: &Asked,
    version: Version,
) -> Result<(), Cause> {
    *request.uri_mut() = url::app_uri(target, &asked.uri, asked.host.as_ref(), version)?;
    *request.version_mut() = version;
    if version == Version::HTTP_2 {
        request.headers_mut().remove(HOST);
        if has_unforeseen_body(request) {
            request.headers_mut().remove(TRANSFER_ENCODING); // of another try
        }
    } else {
        let host = match &asked.host {
            Some(host) => host.clone(),
            None => HeaderValue::from_str(target.authority.as_str())?,
        };
        request.headers_mut().insert(HOST, host);
        let trailers = matches!(asked.purpose, Purpose::Passing { trailers: true });
        trailers::put_te_right(request.headers_mut(), trailers);
        if has_unforeseen_body(request) {
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
    }
    Ok(())
}

/// Whether a body of unknown length comes with a request that seldom has one: unless its headers speak of it, hyper drops it.
fn has_unforeseen_body(request: &Request<Body>) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
        && !request.body().is_end_stream()
        && request.body().size_hint().exact().is_none()
}

fn fit_for_sender(parts: &mut http::response::Parts) {
    headers::to_sender(&mut parts.headers);
    parts.version = Version::HTTP_11; // the listener writes the version of its own connection
}

fn is_switch(status: http::StatusCode) -> bool {
    status == http::StatusCode::SWITCHING_PROTOCOLS
}
