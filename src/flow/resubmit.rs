//! A person lets a held event through: its stored request goes the way of any other from the claim on. It was
//! verified when it came, so its signature is not looked at again.

use std::net::IpAddr;

use bytes::Bytes;
use http::{Request, StatusCode};

use super::proxy::Work;
use super::{Arrived, Flow, Found};
use crate::ledger::Payload;
use crate::upstream::headers::Caller;
use crate::upstream::public_url;

/// What a replay came to.
#[derive(Clone, Debug)]
pub struct Resubmit {
    pub status: StatusCode,
    pub said: &'static str,
}

/// Why a payload can't be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ResubmitError {
    #[error("the stored request can't be read: {0}")]
    Unreadable(&'static str),
    #[error("no route of the configuration takes {0} any more")]
    NoRoute(String),
}

impl Flow {
    /// Sends a stored request again; items that are done meanwhile are left out of it.
    ///
    /// # Errors
    /// When the payload isn't one of ours, or its route is gone.
    pub async fn resubmit(&self, payload: &Payload) -> Result<Resubmit, ResubmitError> {
        let request = parse(&payload.request)?;
        let host = request.headers().get(http::header::HOST).and_then(|host| host.to_str().ok());
        let found = self.shared.routes.find(request.method(), host, request.uri().path());
        let Found::Event { route, path_params } = found else {
            return Err(ResubmitError::NoRoute(format!("{} {}", request.method(), request.uri().path())));
        };
        let caller = Caller { address: IpAddr::from([127, 0, 0, 1]), secure: false, trusted: true };
        let url = public_url(request.uri(), request.headers(), &caller, route.config.public_url.as_deref());
        let decoded = super::body::decoded(request.headers(), request.body(), route.config.body_limit)
            .unwrap_or_else(|_| request.body().clone());
        let arrived = Arrived { decoded, url, path_params, caller, request };
        let items = route.items(&arrived);
        let done = self.to_the_end(Work { route, arrived, items }).await;
        Ok(Resubmit { status: done.answer.status(), said: done.said })
    }
}

fn parse(wire: &Bytes) -> Result<Request<Bytes>, ResubmitError> {
    let mut slots = [httparse::EMPTY_HEADER; 256];
    let mut head = httparse::Request::new(&mut slots);
    let length = match head.parse(wire) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) | Err(_) => {
            return Err(ResubmitError::Unreadable("its head is broken"));
        }
    };
    let mut request =
        Request::builder().method(head.method.unwrap_or_default()).uri(head.path.unwrap_or_default());
    for header in head.headers.iter() {
        request = request.header(header.name, header.value);
    }
    request.body(wire.slice(length..)).map_err(|_| ResubmitError::Unreadable("its head is not HTTP"))
}
