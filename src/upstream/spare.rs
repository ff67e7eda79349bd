//! A request once more, for the tries that fail though the request went out: what an app has refused over HTTP/2, and what
//! is safe to repeat (RFC 9110, 9.2.2) and met a kept connection as the app closed it. Nothing else ever goes out twice.

use http::Request;

use super::body::Body;
use super::pool::{Connection, SendFault};

/// A request that may go out again, if its try fails as it has to.
pub(super) struct Spare {
    request: Request<Body>,
    /// The app must have said that it has not processed it.
    refused: bool,
}

impl Spare {
    /// `repeatable`: nothing is lost where the app sees a safe request twice, as it is no event.
    pub(super) fn of(request: &Request<Body>, connection: &Connection, repeatable: bool) -> Option<Self> {
        let refused = match connection {
            Connection::Http2(_) => true,
            Connection::Http1(lease) if lease.is_kept() && repeatable && request.method().is_safe() => false,
            Connection::Http1(_) => return None,
        };
        let mut again = Request::new(request.body().again()?);
        again.method_mut().clone_from(request.method());
        again.uri_mut().clone_from(request.uri());
        again.headers_mut().clone_from(request.headers());
        Some(Self { request: again, refused })
    }

    /// The request, where this fault lets it go out again.
    pub(super) fn after(self, fault: &SendFault) -> Option<Request<Body>> {
        let may = if self.refused { fault.is_refused() } else { fault.is_end() };
        may.then_some(self.request)
    }
}
