//! What the app gets: the request as it came, or a batch without the items that it has seen, signed anew.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, HeaderName};
use http::{HeaderValue, Request};

use super::Arrived;
use super::proxy::Work;
use crate::ledger::Payload;
use crate::trace::Trace;
use crate::upstream::headers;

pub(super) const UMAVEZ_REMOVED: HeaderName = HeaderName::from_static("umavez-removed");

/// What a sender says of its body's bytes, stale once it is cut; whoever checks one that isn't there has the signature.
const DIGESTS: [HeaderName; 4] = [
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("digest"),
];

/// The request for the app, without the items at `removed`. Where a cut body could not be signed so that the app's
/// own check passes, nothing is cut: a repeated event is better than one that the app rejects.
pub(super) fn request(work: &Work, removed: &[usize]) -> Request<Bytes> {
    let whole = &work.arrived.request;
    let mut request = Request::new(whole.body().clone());
    *request.method_mut() = whole.method().clone();
    *request.uri_mut() = whole.uri().clone();
    *request.headers_mut() = whole.headers().clone();
    headers::to_app(request.headers_mut(), whole.version(), &work.arrived.caller);
    work.trace.propagate(request.headers_mut());
    for name in &work.route.config.strip_headers {
        request.headers_mut().remove(name);
    }
    if !removed.is_empty() {
        cut(work, removed, &mut request);
    }
    request
}

fn cut(work: &Work, removed: &[usize], request: &mut Request<Bytes>) {
    if !work.items.can_cut() {
        tracing::debug!(route = %work.route.config.name, "forwarded whole: this body can't be cut");
        return;
    }
    let signature = work.route.config.provider.as_ref().and_then(|provider| provider.signature.as_ref());
    let signed =
        |name: &HeaderName| signature.is_some_and(|signature| signature.signs_header(name, |_| None));
    if DIGESTS.iter().any(|name| request.headers().contains_key(name) && signed(name)) {
        tracing::debug!(route = %work.route.config.name, "forwarded whole: its digest is signed");
        return;
    }
    let body = work.items.without(&work.arrived.decoded, removed);
    let signed = match work.route.sign(&work.arrived, &body) {
        Ok(signed) => signed,
        Err(why) => {
            tracing::debug!(route = %work.route.config.name, %why, "forwarded whole: the cut body can't be signed");
            return;
        }
    };
    *request.body_mut() = Bytes::from(body);
    let headers = request.headers_mut();
    headers.remove(CONTENT_ENCODING);
    for name in DIGESTS {
        headers.remove(name);
    }
    for (name, value) in signed {
        headers.insert(name, value);
    }
    headers.insert(UMAVEZ_REMOVED, HeaderValue::from(removed.len()));
}

/// The request to store with claims that may be held: its wire form, complete, so that it can be replayed.
pub(super) fn payload(Arrived { request, .. }: &Arrived, trace: &Trace) -> Payload {
    let mut wire = BytesMut::with_capacity(request.body().len() + 1024);
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    wire.put_slice(request.method().as_str().as_bytes());
    wire.put_u8(b' ');
    wire.put_slice(target.as_bytes());
    wire.put_slice(b" HTTP/1.1\r\n");
    for (name, value) in trace.stored(request.headers()).iter() {
        wire.put_slice(name.as_str().as_bytes());
        wire.put_slice(b": ");
        wire.put_slice(value.as_bytes());
        wire.put_slice(b"\r\n");
    }
    wire.put_slice(b"\r\n");
    wire.put_slice(request.body());
    Payload { id: rand::random(), request: wire.freeze() }
}
