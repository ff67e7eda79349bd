//! Requests for a dedup route's path that come to no event: answered here or by the listener, and marked as the route's.

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};

use super::{Flow, Found, Route, answer};
use crate::metrics;

impl Flow {
    /// Whether a request that no handler sees is for a dedup route's path; what the `Umavez` header says of it then.
    pub fn turned_away<B>(&self, request: &Request<B>) -> Option<(HeaderName, HeaderValue)> {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        match self.live.look(|shared| shared.find(request.method(), host, request.uri().path())) {
            Found::Nothing(_) => None,
            Found::Event { .. } | Found::PassThrough(_) | Found::Misspelled(_) => {
                Some((answer::UMAVEZ, HeaderValue::from_static(answer::REFUSED)))
            }
        }
    }
}

/// Passed on, it would reach the app unsigned and as often as it comes. The log tells the pattern only: what stands for
/// its placeholders may be the sender's secret.
pub(super) fn misspelled(route: &Route) -> Response<Bytes> {
    let right = &*route.config.path.0;
    tracing::warn!(route = %route.config.name, right, "refused: another spelling of a route's path");
    route.metrics.request(metrics::Answer::Refused);
    let text = format!("this path is another spelling of {right}, where webhooks are taken\n");
    let mut answer = answer::text(StatusCode::NOT_FOUND, Bytes::from(text));
    answer::mark(&mut answer, answer::REFUSED);
    answer
}
