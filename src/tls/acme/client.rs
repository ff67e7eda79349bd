//! HTTPS to the authority's directory: our own client under the ACME crate, so that there is one TLS provider, the
//! roots are those of the settings, and nothing takes for ever.

use std::error::Error as StdError;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::ClientConfig;

use crate::tls::pem;

/// The longest that one exchange with the directory may take.
const EXCHANGE_MAX: Duration = Duration::from_secs(30);
/// Longest answer, bytes: a chain is a few KiB.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// Longest that the directory may put us off by one answer.
const PUT_OFF_MAX: Duration = Duration::from_secs(86_400);

const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("umavez/", env!("CARGO_PKG_VERSION"), " instant-acme"));

type Http = hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>;

/// The directory did not answer, or with nothing that ACME knows: nothing was tried there.
#[derive(Debug, thiserror::Error)]
#[error("the directory can't be used")]
pub(super) struct Unreachable(#[source] pub(super) Box<dyn StdError + Send + Sync>);

/// For how long the directory asked to be left alone since this was last taken, if it did.
#[derive(Clone, Debug, Default)]
pub(super) struct PutOff(Arc<Mutex<Option<Duration>>>);

impl PutOff {
    pub(super) fn take(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn note<B>(&self, answer: &Response<B>) {
        let seconds = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        if let Some(seconds) = seconds {
            let pause = Duration::from_secs(seconds).min(PUT_OFF_MAX);
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(pause);
        }
    }
}

pub(super) struct Client {
    http: Http,
    put_off: PutOff,
}

impl Client {
    /// Reads the roots, which blocks.
    ///
    /// # Errors
    /// When they are of no use.
    pub(super) fn new(roots: Option<&Path>, put_off: PutOff) -> Result<Self, Unreachable> {
        let config = config(roots).map_err(Unreachable)?;
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_only()
            .enable_http1()
            .build();
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { http, put_off })
    }
}

fn config(roots: Option<&Path>) -> Result<ClientConfig, Box<dyn StdError + Send + Sync>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = match roots {
        Some(file) => builder.with_root_certificates(pem::roots(file)?),
        None => builder.with_native_roots().map_err(|error| {
            format!(
                "the system's trusted certificates: {error}; install them, or set [public_tls.acme] directory_ca"
            )
        })?,
    };
    Ok(builder.with_no_client_auth())
}

impl HttpClient for Client {
    fn request(
        &self,
        mut request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        request.headers_mut().insert(USER_AGENT, AGENT);
        let (sent, put_off) = (self.http.request(request), self.put_off.clone());
        Box::pin(async move {
            let exchange = async {
                let (head, body) = sent.await?.into_parts();
                let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?.to_bytes();
                Ok::<_, Box<dyn StdError + Send + Sync>>(Response::from_parts(head, body))
            };
            let answered = match tokio::time::timeout(EXCHANGE_MAX, exchange).await {
                Ok(answered) => answered,
                Err(_) => Err(format!("no answer within {EXCHANGE_MAX:?}").into()),
            };
            let answer = answered.map_err(|error| Error::Other(Box::new(Unreachable(error))))?;
            if answer.status().is_client_error() || answer.status().is_server_error() {
                put_off.note(&answer);
            }
            if answer.status().is_server_error() {
                let error = format!("it answered {}{}", answer.status(), detail(answer.body()));
                return Err(Error::Other(Box::new(Unreachable(error.into()))));
            }
            Ok(BytesResponse::from(answer.map(Full::new)))
        })
    }
}

/// What a problem document says, if the answer is one.
fn detail(body: &[u8]) -> String {
    let problem = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
    problem["detail"].as_str().map(|detail| format!(": {detail}")).unwrap_or_default()
}
