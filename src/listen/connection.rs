//! One connection from its first byte to its end: HTTP/1.1 or HTTP/2 by the first bytes, deadlines, and an end in
//! good order when the gateway stops.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::TaskTracker;

use super::admit::{Inadmissible, admit};
use super::watch::{Advice, Room, UnderWay, Watch, Watched};
use super::{Handler, Listening, Peer};
use crate::upstream::{Body, Sips};

/// The least that the parser accepts as a buffer.
const HEADER_BYTES_MIN: usize = 8 * 1024;

/// Requests that one HTTP/2 connection may have under way.
const STREAMS_MAX: u32 = 256;

/// Bytes of one request's body that a sender may send over HTTP/2 before they are read.
const BODY_WINDOW_BYTES: u32 = 64 * 1024;

/// Serves a connection in the clear. What it speaks is seen without taking it: whoever takes the first bytes to find out
/// leaves hyper with a buffer of twice the size, and a layer for each later byte to go through.
pub(super) async fn begin<H: Handler>(
    stream: Watched,
    watch: Arc<Watch>,
    peer: Peer,
    handler: H,
    listening: Arc<Listening>,
) {
    let due = watch.first_head_due(&listening.limits);
    let http1 = tokio::select! {
        biased;
        http1 = stream.begins_http1() => http1,
        () = has_lingered(&listening) => return,
        () = listening.slots.wanted() => return,
        () = tokio::time::sleep_until(due.into()) => {
            tracing::debug!(peer = %peer.address, "a connection was dropped: nothing came");
            return;
        }
    };
    if !http1 {
        return drive(stream, watch, peer, handler, listening).await;
    }
    let service = service(&watch, &peer, &handler);
    let connection = http1_builder(&listening).serve_connection(TokioIo::new(Sips::new(stream)), service);
    attend(pin!(connection.with_upgrades()), &watch, &peer, &listening).await;
}

/// A stop leaves who has not asked yet the time that it leaves an idle connection.
pub(super) async fn has_lingered(listening: &Listening) {
    listening.shutdown.cancelled().await;
    tokio::time::sleep(listening.idle_linger).await;
}

/// Serves a connection of either version until either side ends it. The stream tells the watch what moves.
pub(super) async fn drive<S, H>(
    stream: S,
    watch: Arc<Watch>,
    peer: Peer,
    handler: H,
    listening: Arc<Listening>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let builder = builder(&listening);
    let service = service(&watch, &peer, &handler);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(Sips::new(stream)), service);
    attend(pin!(connection), &watch, &peer, &listening).await;
}

/// What the two kinds of connections have in common.
trait Served {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Box<dyn Error + Send + Sync>>>;

    /// No request after the one under way.
    fn finish(self: Pin<&mut Self>);
}

impl<S, H> Served for http1::UpgradeableConnection<TokioIo<S>, H>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: HttpService<Incoming, ResBody = Body, Error = Infallible>,
{
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Box<dyn Error + Send + Sync>>> {
        Future::poll(self, cx).map_err(Into::into)
    }

    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<S, H> Served for auto::UpgradeableConnection<'_, TokioIo<S>, H, Tasks>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: hyper::service::Service<http::Request<Incoming>, Response = Response<Body>, Error = Infallible>,
    H::Future: Send + 'static,
{
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Box<dyn Error + Send + Sync>>> {
        Future::poll(self, cx)
    }

    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

async fn attend<C: Served>(mut connection: Pin<&mut C>, watch: &Watch, peer: &Peer, listening: &Listening) {
    let mut clock = pin!(tokio::time::sleep_until(watch.first_look(&listening.limits).into()));
    let mut stopping = pin!(listening.shutdown.cancelled());
    let mut stopped = None;
    loop {
        tokio::select! {
            biased;
            result = poll_fn(|cx| connection.as_mut().poll(cx)) => {
                if let Err(error) = result {
                    tracing::debug!(error, peer = %peer.address, "a connection ended early");
                }
                return;
            }
            () = &mut clock => {
                let leaves = stopped.map(|stopped| watch.may_go(stopped, listening.idle_linger));
                match (watch.advice(&listening.limits), leaves) {
                    (Advice::LookAgain(at), None) => clock.as_mut().reset(at.into()),
                    (Advice::LookAgain(at), Some(leaves)) if leaves > crate::clock::monotonic() => {
                        clock.as_mut().reset(at.min(leaves).into());
                    }
                    (Advice::LookAgain(_) | Advice::Finish, _) => {
                        connection.as_mut().finish();
                        let last_look = crate::clock::monotonic() + listening.limits.header_timeout;
                        clock.as_mut().reset(last_look.into());
                    }
                    (Advice::Drop(why), _) => {
                        tracing::debug!(why, peer = %peer.address, "a connection was dropped");
                        return;
                    }
                }
            }
            () = listening.slots.wanted() => match watch.room() {
                Room::None => {}
                Room::Idle => connection.as_mut().finish(),
                Room::Fresh => {
                    tracing::debug!(peer = %peer.address, "a connection without a request made room");
                    return;
                }
            },
            () = &mut stopping, if stopped.is_none() => {
                watch.leave();
                stopped = Some(crate::clock::monotonic());
                clock.as_mut().reset(crate::clock::monotonic().into());
            }
        }
    }
}

fn service<H: Handler>(
    watch: &Arc<Watch>,
    peer: &Peer,
    handler: &H,
) -> impl HttpService<Incoming, ResBody = Body, Error = Infallible, Future: Send + 'static>
+ hyper::service::Service<
    http::Request<Incoming>,
    Response = Response<Body>,
    Error = Infallible,
    Future: Send + 'static,
> + use<H> {
    let (watch, handler, peer) = (Arc::clone(watch), handler.clone(), peer.clone());
    service_fn(move |request| answer(request, &handler, &peer, &watch))
}

fn header_bytes_max(listening: &Listening) -> usize {
    listening.limits.header_bytes_max.max(HEADER_BYTES_MIN)
}

/// As `builder` sets its own, which is of another type.
fn http1_builder(listening: &Listening) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.half_close(true).header_read_timeout(None).max_buf_size(header_bytes_max(listening));
    builder
}

fn builder(listening: &Listening) -> auto::Builder<Tasks> {
    let header_bytes_max = header_bytes_max(listening);
    let mut builder = auto::Builder::new(Tasks(listening.tracker.clone()));
    builder.http1().half_close(true).header_read_timeout(None).max_buf_size(header_bytes_max);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(std::time::Duration::from_secs(20))
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(BODY_WINDOW_BYTES)
        .max_header_list_size(u32::try_from(header_bytes_max).unwrap_or(u32::MAX));
    builder
}

fn answer<H: Handler>(
    mut request: http::Request<Incoming>,
    handler: &H,
    peer: &Peer,
    watch: &Arc<Watch>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send + use<H> {
    let http2 = request.version() == http::Version::HTTP_2;
    let under_way = watch.begin(http2);
    let (handler, peer, watch) = (handler.clone(), peer.clone(), Arc::clone(watch));
    // The handler is called in here: its future, made outside, would be moved in and then take its room twice.
    async move {
        let mut response = match admit(&mut request) {
            Ok(()) => handler.handle(request, peer).await,
            Err(inadmissible) => {
                let mut response = refusal(inadmissible);
                handler.turned_away(&request, &mut response);
                response
            }
        };
        if watch.is_leaving() && !http2 && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
        }
        watch.answered(response.status());
        Ok(held(response, under_way))
    }
}

/// The answer, under way until its last byte is with the kernel.
fn held(mut response: Response<Body>, under_way: UnderWay) -> Response<Body> {
    use http_body::Body as _;
    if !response.body().is_end_stream() {
        response.body_mut().hold(Box::new(under_way));
    } else if response.status() == StatusCode::NOT_MODIFIED
        && response.headers().contains_key(http::header::CONTENT_LENGTH)
    {
        *response.body_mut() = Body::absent();
    }
    response
}

fn refusal(inadmissible: Inadmissible) -> Response<Body> {
    let mut response = Response::new(Body::from(inadmissible.text()));
    *response.status_mut() = inadmissible.status();
    let headers = response.headers_mut();
    headers.insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
    if inadmissible.status() == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(
            http::header::ALLOW,
            http::HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
        );
    }
    response
}

/// Runs the streams of HTTP/2 where drain can wait for them.
#[derive(Clone)]
struct Tasks(TaskTracker);

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}
