//! What a reload swaps in one step: a request looks once, when it comes, and ends under what it found then.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::{Method, Request};

use super::prepared::{Found, Routes};
use crate::config::Target;
use crate::listen::Peer;
use crate::trace::{Trace, Tracer};
use crate::upstream::headers::Caller;

/// The settings that all serving threads share.
#[derive(Debug)]
pub struct Shared {
    pub routes: Routes,
    /// Where what matches no route goes.
    pub default: Option<Arc<Target>>,
    /// Peers whose `Forwarded` and `X-Forwarded-*` are believed.
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// Where traces are on.
    pub tracer: Option<Tracer>,
}

/// The settings now. A look takes no lock, and costs no write to memory that threads share.
#[derive(Clone, Debug)]
pub struct Live(Arc<ArcSwap<Shared>>);

impl Shared {
    /// What a request is for. `host` is as in the request: any case, with or without a port.
    pub(super) fn find(&self, method: &Method, host: Option<&str>, path: &str) -> Found {
        self.routes.find(method, host, path).unwrap_or_else(|| Found::Nothing(self.default.clone()))
    }

    pub(super) fn caller(&self, peer: &Peer) -> Caller {
        let address = peer.address.ip().to_canonical();
        Caller { address, secure: peer.secure, trusted: self.trusts(address) }
    }

    pub(super) fn trace<B>(&self, request: &Request<B>, caller: &Caller) -> Trace {
        self.tracer.as_ref().map(|tracer| tracer.begin(request, caller)).unwrap_or_default()
    }

    pub(super) fn trace_replay(&self, stored: &http::HeaderMap) -> Trace {
        self.tracer.as_ref().map(|tracer| tracer.replay(stored)).unwrap_or_default()
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|network| network.contains(&address))
    }
}

impl Live {
    pub fn new(shared: Shared) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(shared)))
    }

    /// From here on requests come under these.
    pub fn swap(&self, shared: Shared) {
        self.0.store(Arc::new(shared));
    }

    pub(super) fn look<T>(&self, at: impl FnOnce(&Shared) -> T) -> T {
        at(&self.0.load())
    }
}
