//! What a provider sends to check a URL: recognised before it could be refused as unsigned, passed to the app, or
//! answered where the route says so and has what it takes. Claims nothing.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Request, Response, StatusCode};

use super::prepared::Route;
use super::{Arrived, answer};
use crate::clock::UnixMillis;
use crate::config::{HandshakeBy, Secret};
use crate::metrics::Said;
use crate::providers::{Delivery, Handshake, Items};

impl Route {
    /// The handshake that a request is, if it stands for its own: unsigned where events are signed. What shows a
    /// signature, right or wrong, is none.
    pub(super) fn unsigned_handshake(&self, arrived: &Arrived) -> Option<&Handshake> {
        let signature = self.config.provider.as_ref().and_then(|provider| provider.signature.as_ref());
        if signature.is_some_and(|signature| signature.is_shown_in(arrived.request.headers())) {
            return None;
        }
        self.handshakes().find(|known| known.is_unsigned() && known.is(&arrived.delivery()))
    }

    /// The handshake that a verified request is. What carries an event is none, so events pay nothing for the look.
    pub(super) fn handshake(&self, arrived: &Arrived, items: &Items) -> Option<&Handshake> {
        if items.list.iter().any(|item| item.parts.is_ok()) {
            return None;
        }
        self.handshakes().find(|known| known.is(&arrived.delivery()))
    }

    /// The gateway's own answer to a handshake; `None` where the app gives it.
    pub(super) fn answer_handshake(
        &self,
        handshake: &Handshake,
        arrived: &Arrived,
        now: UnixMillis,
    ) -> Option<Response<Bytes>> {
        if self.config.handshake == HandshakeBy::App {
            return None;
        }
        let delivery = arrived.delivery();
        let secret = self.config.secrets.iter().find(|secret| self.verifies_under(secret, &delivery, now));
        self.written(handshake, &delivery, secret)
    }

    /// The gateway's own answer to a request whose method is none of the route's events.
    pub(super) fn answer_probe<B>(&self, request: &Request<B>) -> Option<Response<Bytes>> {
        if self.config.handshake == HandshakeBy::App {
            return None;
        }
        let url = request.uri().to_string();
        let delivery = Delivery {
            method: request.method(),
            url: &url,
            headers: request.headers(),
            path_params: &[],
            raw_body: &[],
            body: &[],
        };
        let handshake = self.handshakes().find(|known| known.is(&delivery))?;
        self.written(handshake, &delivery, None)
    }

    fn handshakes(&self) -> impl Iterator<Item = &Handshake> {
        self.config.provider.iter().flat_map(|provider| &provider.handshakes)
    }

    /// While secrets rotate, the answer is made with the one that the request was signed with.
    fn verifies_under(&self, secret: &Secret, delivery: &Delivery<'_>, now: UnixMillis) -> bool {
        let signature = self.config.provider.as_ref().and_then(|provider| provider.signature.as_ref());
        let verifier = signature.and_then(|scheme| scheme.prepare(&[secret.expose().as_bytes()], None).ok());
        verifier.is_some_and(|verifier| verifier.verify(delivery, now.0).is_ok())
    }

    fn written(
        &self,
        handshake: &Handshake,
        delivery: &Delivery<'_>,
        secret: Option<&Secret>,
    ) -> Option<Response<Bytes>> {
        let tokens: Vec<&[u8]> =
            self.config.verify_tokens.iter().map(|token| token.expose().as_bytes()).collect();
        let secret = secret.map(|secret| secret.expose().as_bytes());
        let written = handshake.answer(delivery, &tokens, secret)?;
        let mut response = Response::new(Bytes::from(written.body));
        *response.status_mut() = StatusCode::from_u16(written.status).unwrap_or(StatusCode::OK);
        let headers = response.headers_mut();
        if let Some(value) = written.content_type.and_then(|text| HeaderValue::try_from(text).ok()) {
            headers.insert(CONTENT_TYPE, value);
        }
        // It repeats what a stranger may have sent: no browser shall read it as a page.
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        answer::mark(&mut response, Said::Keyless.label());
        Some(response)
    }
}
