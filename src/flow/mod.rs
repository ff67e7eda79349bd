//! The life of a request, in order. Only this room orders steps.

mod answer;
pub mod body;
pub mod capture;
mod counted;
mod decode;
mod done;
mod forward;
mod handshake;
mod live;
pub mod pass;
mod paths;
mod persist;
mod plan;
mod prepared;
mod proxy;
mod resubmit;
mod room;
mod route;
mod settle;
mod shadow;
mod spelling;
mod turned_away;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::clock::{Clock, monotonic, since_epoch};
use crate::config::{Mode, OnUnsigned, RouteConfig, Target};
use crate::ledger::Ledger;
use crate::listen::{Peer, Slot};
use crate::metrics;
use crate::providers::{Items, Redactor};
use crate::trace::Trace;
use crate::upstream::headers::{self, Caller};
use crate::upstream::{Arriving, Body, Outcome, Upstream, public_url};
use answer::Refusal;
use done::Done;
pub use live::{Live, Shared};
pub use pass::Tunnels;
use persist::Persistent;
pub use prepared::{Found, Route, RouteError, Routes};
use proxy::Work;
pub use resubmit::{Resubmit, ResubmitError, Stands, stored_request};
pub use room::{Room, Rooms};
pub use route::{RouteConflict, RouteTable};
use turned_away::misspelled;

/// Most events in one request: providers send a thousand at the most, and each takes a claim, a row and about a KiB.
const ITEMS_MAX: usize = 20_000;

/// One serving thread's flow: the routes all threads share, and its own connections.
pub struct Flow {
    ledger: Ledger,
    upstream: Upstream,
    /// Looked at once for each request, when it comes.
    live: Live,
    clock: Clock,
    /// What outlives a request's connection: drain waits for it.
    tunnels: Tunnels,
    /// What all bodies of the process share.
    rooms: Rooms,
    passed: metrics::Passed,
}

/// A request of a dedup route that has arrived whole.
#[derive(Clone, Debug)]
struct Arrived {
    request: Request<Bytes>,
    /// The body to read items from: the request's, less any `Content-Encoding`.
    decoded: Bytes,
    /// The URL that the provider called; of two that `public_url` may mean, from verifying on the one that was signed.
    url: String,
    path_params: Vec<(String, String)>,
    caller: Caller,
    /// Theirs among all bodies; a stored request needs none.
    _room: Option<Arc<Room>>,
}

/// What a request of a dedup route came to before the first claim.
enum Arrival {
    /// Boxed, as it is from here to its end: it passes through many hands.
    Event(Box<Work>),
    /// What the provider sent to check the URL, answered.
    Handshake(Response<Bytes>),
    /// In shadow, a body past the limit, or with no room: what was read of it, and the request with the rest.
    Longer(Bytes, Request<Incoming>),
}

impl Flow {
    /// Shared by the requests under way, each of which would otherwise clone every handle in it.
    pub fn new(
        ledger: Ledger,
        upstream: Upstream,
        live: Live,
        clock: Clock,
        tunnels: Tunnels,
        rooms: Rooms,
    ) -> Arc<Self> {
        Arc::new(Self { ledger, upstream, live, clock, tunnels, rooms, passed: metrics::Passed::new() })
    }

    /// What the bodies of all requests take now, bytes.
    pub fn buffered_bytes(&self) -> usize {
        self.rooms.bytes()
    }

    /// Answers one request, whatever becomes of it.
    pub async fn receive(self: &Arc<Self>, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let host = host.or_else(|| request.uri().authority().map(|authority| authority.as_str()));
        let (found, caller, trace) = self.live.look(|shared| {
            let caller = shared.caller(&peer);
            let found = shared.find(request.method(), host, request.uri().path());
            (found, caller, shared.trace(&request, &caller))
        });
        let slot = peer.slot();
        match found {
            // Boxed, as passing through is: hyper moves a request's future, and keeps room for it per connection.
            Found::Event { route, path_params } => {
                Box::pin(self.once(route, path_params, request, (caller, trace), slot)).await
            }
            Found::PassThrough(route) => match route.answer_probe(&request) {
                Some(answer) => trace.answered(answer.map(Body::from)),
                None => {
                    self.pass(Some(&route.config.upstream), Bytes::new(), request, (caller, trace), slot)
                        .await
                }
            },
            // What only counts may refuse nothing.
            Found::Misspelled(route) if route.config.mode == Mode::Shadow => {
                self.pass(Some(&route.config.upstream), Bytes::new(), request, (caller, trace), slot).await
            }
            Found::Misspelled(route) => trace.answered(misspelled(&route).map(Body::from)),
            Found::Nothing(default) => {
                self.pass(default.as_deref(), Bytes::new(), request, (caller, trace), slot).await
            }
        }
    }

    /// What people may see of the deliveries of the route with this name.
    pub fn redactor(&self, route: &str) -> Option<Redactor> {
        self.live.look(|shared| shared.routes.redactor(route).cloned())
    }

    /// Whether requests are traced.
    pub fn traces(&self) -> bool {
        self.live.look(|shared| shared.tracer.is_some())
    }

    /// The values of the placeholders in the path of its route, for a request that is an event.
    pub fn path_params(&self, request: &Request<Bytes>) -> Vec<(String, String)> {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        match self.live.look(|shared| shared.find(request.method(), host, request.uri().path())) {
            Found::Event { path_params, .. } => path_params,
            Found::PassThrough(_) | Found::Misspelled(_) | Found::Nothing(_) => Vec::new(),
        }
    }

    async fn pass(
        &self,
        target: Option<&Target>,
        read: Bytes,
        request: Request<Incoming>,
        (caller, mut trace): (Caller, Trace),
        slot: Slot,
    ) -> Response<Body> {
        let Some(target) = target else {
            let answer = answer::text(StatusCode::NOT_FOUND, Bytes::from_static(b"no route matches\n"));
            return trace.answered(answer.map(Body::from));
        };
        let request = (read, request);
        let passing = pass::pass(&self.upstream, target, request, &caller, &mut trace, &self.tunnels, slot);
        let answer = Box::pin(passing).await;
        self.passed.answered(answer.status());
        trace.passed(target, answer)
    }

    /// A dedup route: reads, verifies and understands the request, then sees it to its end.
    async fn once(
        self: &Arc<Self>,
        route: Arc<Route>,
        path_params: Vec<(String, String)>,
        request: Request<Incoming>,
        (caller, mut trace): (Caller, Trace),
        slot: Slot,
    ) -> Response<Body> {
        let began = monotonic();
        trace.on(&route.config);
        let done = match self.arrive(&route, path_params, request, caller, &mut trace).await {
            Err(refusal) => Done { trace, ..refused(&refusal.for_sender_of(&route.config)) },
            Ok(Arrival::Event(mut work)) => {
                work.trace = trace;
                self.to_the_end(work).await
            }
            Ok(Arrival::Handshake(answer)) => Done { trace, ..answered(answer) },
            Ok(Arrival::Longer(read, request)) => {
                route.metrics.request(metrics::Answer::TooLarge);
                return self.pass(Some(&route.config.upstream), read, request, (caller, trace), slot).await;
            }
        };
        route.metrics.request(done.class);
        let took = began.elapsed();
        let own = took.saturating_sub(done.elsewhere);
        route.metrics.whole.record(took);
        route.metrics.own.record(own);
        if let Some(trace) = done.trace.sampled() {
            route.metrics.exemplars.note(trace, took, since_epoch());
        }
        tracing::info!(
            target: "umavez::request",
            route = &*route.config.name,
            mode = (route.config.mode == Mode::Shadow).then_some("shadow"),
            verdict = done.said,
            answer = done.class.label(),
            status = done.answer.status().as_u16(),
            key = done.key,
            items = (done.items > 1).then_some(done.items),
            removed = (done.removed > 0).then_some(done.removed),
            attempt = (done.attempt > 0).then_some(done.attempt),
            own_us = micros(own),
            total_us = micros(took),
            trace_id = done.trace.id(),
            "request"
        );
        done.traced().map(Body::from)
    }

    /// Everything before the first claim: nothing here touches a store.
    async fn arrive(
        &self,
        route: &Arc<Route>,
        path_params: Vec<(String, String)>,
        request: Request<Incoming>,
        caller: Caller,
        trace: &mut Trace,
    ) -> Result<Arrival, Refusal> {
        let config = &*route.config;
        let shadow = config.mode == Mode::Shadow;
        let admitted = route.admit(request.extensions().get());
        let admitted = admitted.map_err(|stranger| unsigned_refusal(route, &stranger, trace));
        let admitted = if shadow { admitted } else { Ok(admitted?) };
        let url = public_url(request.uri(), request.headers(), &caller, config.public_url.as_deref());
        let (mut parts, incoming) = request.into_parts();
        headers::drop_reserved(&mut parts.headers);
        let incoming = Arriving::new(incoming, parts.version);
        let mut room = self.rooms.room(config.buffered_bytes_max);
        let came = body::read(incoming, config.body_limit, config.body_timeout, &mut room).await;
        let raw = match came.map_err(refusal)? {
            body::Came::Whole(raw) => raw,
            body::Came::Longer(read, rest) | body::Came::Crowded(read, rest) if shadow => {
                return Ok(Arrival::Longer(read, Request::from_parts(parts, rest)));
            }
            body::Came::Longer(_, _) => return Err(Refusal::TooLarge(config.body_limit)),
            body::Came::Crowded(_, _) => return Err(Refusal::Busy),
        };
        let encoded = decode::is_encoded(&parts.headers, &raw);
        let (decoded, request) = (raw.clone(), Request::from_parts(parts, raw));
        let mut arrived = Arrived { request, decoded, url, path_params, caller, _room: None };
        // A stranger's body is decoded only where its signature is inside.
        let inside = encoded && route.verifies_inside();
        if inside {
            arrived.decode(config, &mut room).await?;
        }
        let now = self.clock.now();
        // What comes encoded is no such thing: it is known by its bytes as they came.
        let unsigned = if encoded { None } else { route.unsigned_handshake(&arrived) };
        trace.step();
        let verified = match (admitted, unsigned) {
            (Ok(()), None) => {
                route.verify(&mut arrived, now).map_err(|bad| unsigned_refusal(route, &bad, trace))
            }
            (admitted, _) => admitted,
        };
        trace.verified(verified.is_ok());
        match verified {
            // It touches no store: else a forged event would be known when the mode changes.
            Err(_) if shadow => {
                arrived._room = Some(Arc::new(room));
                return Ok(Arrival::Event(Work::unsigned(route, arrived)));
            }
            verified => verified?,
        }
        if encoded && !inside {
            arrived.decode(config, &mut room).await?;
        }
        arrived._room = Some(Arc::new(room));
        let mut items = if unsigned.is_some() { Items::none() } else { route.items(&arrived) };
        if let Some(handshake) = unsigned.or_else(|| route.handshake(&arrived, &items)) {
            if let Some(answer) = route.answer_handshake(handshake, &arrived, now) {
                return Ok(Arrival::Handshake(answer));
            }
            items = Items::none();
        }
        if items.list.len() > ITEMS_MAX {
            if !shadow {
                return Err(Refusal::TooMany(ITEMS_MAX));
            }
            items = Items::none();
        }
        route.capture(&arrived);
        let mut work = Work::unsigned(route, arrived);
        (work.items, work.unsigned) = (items, false);
        Ok(Arrival::Event(work))
    }

    /// From the first claim on, the work goes on also when the sender hangs up and hyper drops this future.
    async fn to_the_end(self: &Arc<Self>, work: Box<Work>) -> Done {
        let flow = Arc::clone(self);
        let whole = Box::pin(async move { flow.proxy(work).await });
        Persistent::new(whole, self.tunnels.tracker.clone()).await
    }

    async fn send(&self, config: &RouteConfig, request: Request<Bytes>) -> Outcome {
        let longest = config.answer_bytes_max;
        match self.upstream.forward(&config.upstream, request, config.timeout, longest).await {
            Outcome::Answered(mut answer) => {
                headers::drop_reserved(answer.headers_mut());
                Outcome::Answered(answer)
            }
            failed @ (Outcome::NeverSent(_) | Outcome::Unknown(_)) => failed,
        }
    }
}

impl Arrived {
    /// Undoes the body's encoding, for reading. What can't be decoded isn't understood: it passes, keyless, as everything
    /// does in shadow.
    async fn decode(&mut self, config: &RouteConfig, room: &mut Room) -> Result<(), Refusal> {
        let (headers, raw) = (self.request.headers(), self.request.body());
        match decode::decoded_aside(headers, raw, config.body_limit, config.body_timeout).await {
            Ok(decoded) if room.grow(decoded.len()).is_ok() => self.decoded = decoded,
            Ok(_) if config.mode != Mode::Shadow => return Err(Refusal::Busy),
            Ok(_) | Err(body::BodyError::NotUnderstood) => {}
            Err(_) if config.mode == Mode::Shadow => {}
            Err(error) => return Err(refusal(error)),
        }
        Ok(())
    }

    /// What the provider's rules look at.
    fn delivery(&self) -> crate::providers::Delivery<'_> {
        crate::providers::Delivery {
            method: self.request.method(),
            url: &self.url,
            headers: self.request.headers(),
            path_params: &self.path_params,
            raw_body: self.request.body(),
            body: &self.decoded,
        }
    }
}

fn refusal(error: body::BodyError) -> Refusal {
    match error {
        body::BodyError::TooLarge(limit) => Refusal::TooLarge(limit),
        body::BodyError::Timeout(patience) => Refusal::TooSlow(patience),
        body::BodyError::Broken(_) | body::BodyError::NotUnderstood => Refusal::Broken,
        body::BodyError::TooManyLayers(most) => Refusal::Wrapped(most),
        body::BodyError::TooMuchWork => Refusal::Busy,
    }
}

fn unsigned_refusal(route: &Route, bad: &dyn std::fmt::Display, trace: &Trace) -> Refusal {
    route.metrics.unsigned.increment(1);
    let mode = route.config.mode.label();
    tracing::warn!(route = %route.config.name, mode, error = %bad, trace_id = trace.id(), "unsigned");
    Refusal::Unsigned {
        answer: match route.config.on_unsigned {
            OnUnsigned::Unauthorized => StatusCode::UNAUTHORIZED,
            OnUnsigned::AcceptAndDrop => StatusCode::OK,
        },
    }
}

fn refused(refusal: &Refusal) -> Done {
    without_claim(refusal.answer(), refusal.class(), refusal.said())
}

fn answered(handshake: Response<Bytes>) -> Done {
    without_claim(handshake, metrics::Answer::Handshake, metrics::Said::Keyless.label())
}

fn without_claim(answer: Response<Bytes>, class: metrics::Answer, said: &'static str) -> Done {
    let (elsewhere, trace) = (Duration::ZERO, Trace::default());
    Done { answer, class, said, key: None, items: 0, removed: 0, attempt: 0, elsewhere, trace }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
