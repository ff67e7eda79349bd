//! The dedup routes as the flow uses them: the configuration, the prepared verifier, the counters; and which of them
//! a request belongs to.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method};

use super::Arrived;
use super::capture::{Album, Recorder};
use super::route::{Match, RouteTable};
use super::spelling::climbs;
use crate::clock::UnixMillis;
use crate::config::{Mode, RouteConfig, Target};
use crate::listen::ClientNames;
use crate::metrics;
use crate::providers::{BadSignature, CannotPrepare, CannotSign, Items, Redactor, Signature, Verifier};
use crate::upstream::whole_url;

/// One route, ready to serve.
#[derive(Debug)]
pub struct Route {
    pub(super) config: Arc<RouteConfig>,
    pub(super) metrics: metrics::Route,
    /// Present where the provider signs and the route has what it takes to check it.
    verifier: Option<Verifier>,
    /// How the provider signs, where this route doesn't check it: a cut body may carry a stale signature.
    unchecked: Option<Signature>,
    /// What of its deliveries people may see.
    redactor: Redactor,
    /// Writes deliveries to files, where the route has a folder for them.
    recorder: Option<Recorder>,
}

/// Every route, by its place in the configuration.
#[derive(Debug)]
pub struct Routes {
    table: RouteTable,
    routes: Vec<Arc<Route>>,
}

/// What a request is for.
#[derive(Debug)]
pub enum Found {
    /// An event of this route; the values of its pattern's placeholders as they stand in the path.
    Event { route: Arc<Route>, path_params: Vec<(String, String)> },
    /// Not an event, though its path belongs to a route: a handshake, a probe.
    PassThrough(Arc<Route>),
    /// An event of this route for an app that reads the path as the route's, which it isn't byte for byte.
    Misspelled(Arc<Route>),
    /// No route's business: it goes here, if anywhere.
    Nothing(Option<Arc<Target>>),
}

/// Why a route can't be served as configured.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    #[error("route {route:?}: secret")]
    Secret {
        route: String,
        #[source]
        source: CannotPrepare,
    },
    #[error("two routes match the same requests: {0}")]
    Conflict(String),
    #[error("route {route:?}: capture_dir: no thread for it")]
    Capture {
        route: String,
        #[source]
        source: std::io::Error,
    },
}

/// A request of a route that takes only those with a certain client certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stranger {
    #[error("no client certificate was presented")]
    Nobody,
    #[error("the client certificate is another's: {0}")]
    Another(String),
}

/// A cut body can't be signed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unsignable {
    #[error("the delivery is signed, and the route has no secret")]
    NoSecret,
    #[error(transparent)]
    Scheme(#[from] CannotSign),
}

impl Route {
    /// Prepares what verifying needs.
    ///
    /// # Errors
    /// When a secret isn't of the form that the provider's scheme takes.
    pub fn new(config: Arc<RouteConfig>) -> Result<Self, RouteError> {
        let provider = config.provider.as_ref();
        let signature = provider.and_then(|provider| provider.signature.as_ref());
        let secrets: Vec<&[u8]> = config.secrets.iter().map(|secret| secret.expose().as_bytes()).collect();
        let checks = !secrets.is_empty() || config.public_key.is_some();
        let verifier = match signature {
            Some(signature) if checks => {
                let prepared = signature.prepare(&secrets, config.public_key.as_deref());
                let verifier = prepared
                    .map_err(|source| RouteError::Secret { route: config.name.to_string(), source })?;
                Some(verifier.for_webhook(config.webhook_id.as_deref()))
            }
            Some(_) | None => None,
        };
        let unchecked = signature.filter(|_| verifier.is_none()).cloned();
        let named = provider.map_or("none", |provider| &provider.name);
        let metrics = metrics::Route::new(&config.name, named, config.mode.label());
        let redactor = Redactor::new(provider.map(|provider| &**provider), Some(&config.items))
            .knowing(secrets)
            .knowing(config.verify_tokens.iter().map(|token| token.expose().as_bytes()));
        let recorder = config.capture.as_ref().map(|bounds| {
            let album = Album::new(&config.name, bounds.clone(), redactor.clone());
            Recorder::start(album, metrics.captures.clone())
        });
        let recorder = recorder
            .transpose()
            .map_err(|source| RouteError::Capture { route: config.name.to_string(), source })?;
        Ok(Self { metrics, verifier, unchecked, redactor, recorder, config })
    }

    /// Whether the route takes requests of who presented this certificate.
    pub(super) fn admit(&self, client: Option<&ClientNames>) -> Result<(), Stranger> {
        let wanted = &self.config.client_names;
        match client {
            _ if wanted.is_empty() => Ok(()),
            Some(ClientNames(names)) if names.iter().any(|name| wanted.contains(name)) => Ok(()),
            Some(ClientNames(names)) => Err(Stranger::Another(names.join(", "))),
            None => Err(Stranger::Nobody),
        }
    }

    /// Whether a request meant for this route has slipped past it when it counts as the `other` one's: but where only
    /// the other asks who sends, and where this one refuses nothing.
    fn is_slipped_by(&self, other: &Self) -> bool {
        let asks = |route: &Self| route.verifier.is_some() || !route.config.client_names.is_empty();
        self.config.mode != Mode::Shadow && (asks(self) || !asks(other))
    }

    /// Whether the request is its provider's own, and fresh. Where `public_url` can mean two URLs and the signature
    /// covers it, under either; the one that was signed is left in `arrived`.
    pub(super) fn verify(&self, arrived: &mut Arrived, now: UnixMillis) -> Result<(), BadSignature> {
        self.verify_at(arrived, Some(now))
    }

    /// Leaves in a stored request, which was verified when it came, the URL that was signed.
    pub(super) fn find_signed_url(&self, arrived: &mut Arrived) {
        // Under neither it stays as it is: a secret may have changed since.
        self.verify_at(arrived, None).ok();
    }

    fn verify_at(&self, arrived: &mut Arrived, now: Option<UnixMillis>) -> Result<(), BadSignature> {
        let Some(verifier) = &self.verifier else { return Ok(()) };
        let holds = |arrived: &Arrived| match now {
            Some(now) => verifier.verify(&arrived.delivery(), now.0),
            None => verifier.holds(&arrived.delivery()),
        };
        let refused = match holds(arrived) {
            Err(mismatch @ BadSignature::Mismatch(_)) if verifier.signs_url() => mismatch,
            said => return said,
        };
        let configured = self.config.public_url.as_deref();
        let whole = configured.and_then(|configured| whole_url(arrived.request.uri(), configured));
        let Some(whole) = whole else { return Err(refused) };
        let joined = std::mem::replace(&mut arrived.url, whole);
        holds(arrived).map_err(|_| {
            arrived.url = joined;
            refused
        })
    }

    /// Whether verifying reads what the body's encoding may hide, and not only the bytes that came.
    pub(super) fn verifies_inside(&self) -> bool {
        self.verifier.as_ref().is_some_and(Verifier::reads_inside)
    }

    /// Keeps a verified delivery in a file, where the route says so.
    pub(super) fn capture(&self, arrived: &Arrived) {
        if let Some(recorder) = &self.recorder {
            recorder.offer(arrived);
        }
    }

    pub(super) fn items(&self, arrived: &Arrived) -> Items {
        self.config.items.items(&arrived.delivery())
    }

    /// The headers that make the app's own verification pass for a cut body.
    pub(super) fn sign(
        &self,
        arrived: &Arrived,
        body: &[u8],
    ) -> Result<Vec<(HeaderName, HeaderValue)>, Unsignable> {
        let delivery = arrived.delivery();
        match (&self.verifier, &self.unchecked) {
            (Some(verifier), _) => Ok(verifier.sign(&delivery, body)?),
            (None, Some(signature)) if signature.binds_body_of(&delivery) => Err(Unsignable::NoSecret),
            (None, _) => Ok(Vec::new()),
        }
    }
}

impl Routes {
    /// # Errors
    /// When two routes want the same requests.
    pub fn new(routes: Vec<Route>) -> Result<Self, RouteError> {
        let configs: Vec<Arc<RouteConfig>> = routes.iter().map(|route| Arc::clone(&route.config)).collect();
        let table = RouteTable::new(&configs).map_err(|conflicts| {
            let told: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
            RouteError::Conflict(told.join("; "))
        })?;
        Ok(Self { table, routes: routes.into_iter().map(Arc::new).collect() })
    }

    /// What people may see of the deliveries of the route with this name.
    pub fn redactor(&self, name: &str) -> Option<&Redactor> {
        self.routes.iter().find(|route| &*route.config.name == name).map(|route| &route.redactor)
    }

    /// The route of a request; `None` where it is no route's. `host` is as in the request: any case, with or without
    /// a port.
    pub(super) fn find(&self, method: &Method, host: Option<&str>, path: &str) -> Option<Found> {
        let Some(Match { index, path_params, event, meant }) = self.table.find(method, host, path) else {
            let meant = self.table.find_misspelled(method, host, path)?;
            return Some(Found::Misspelled(Arc::clone(&self.routes[meant])));
        };
        let route = Arc::clone(&self.routes[index]);
        if let Some(meant) =
            meant.map(|meant| &self.routes[meant]).filter(|meant| meant.is_slipped_by(&route))
        {
            return Some(Found::Misspelled(Arc::clone(meant)));
        }
        if path_params.iter().any(|(_, value)| climbs(value)) {
            return Some(Found::Misspelled(route));
        }
        Some(if event { Found::Event { route, path_params } } else { Found::PassThrough(route) })
    }
}
