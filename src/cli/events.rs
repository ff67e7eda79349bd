//! `umavez events`: the event API of a running gateway, from a terminal.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use clap::{Args, Subcommand};
use http::{Method, Request, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::io::{AsyncRead, AsyncWrite};
use umavez::tls::{AppFiles, AppTls, Pair, Speaking};

use super::{Failure, environment, print};

/// Longest answer of the gateway, bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long the gateway may take; a replay takes as long as the app does.
const PATIENCE: Duration = Duration::from_secs(120);
/// Where the token comes from when no file is named.
const TOKEN_VARIABLE: &str = "UMAVEZ_ADMIN_TOKEN";

const EXAMPLES: &str = "\
Examples:
  umavez events show 'hotmart:3f0c8b51-6e3a-4b6e-9c0e-2f1f2d9f2a11'
  umavez events held
  umavez events mark-done 'pix:loja:lembrete_pix:HP123:2'
  umavez events allow-once --digest 8d3c1f0a5b7e4c2d9f6a1b3c5d7e9f01 --admin http://10.0.0.5:9180 --token-file token

A key is written as logs, Redis and `umavez keys` show it. Every change is recorded (`umavez events actions`).";

/// Look up and change events of a running gateway
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Events {
    #[command(subcommand)]
    action: Action,
    /// The gateway's admin listener
    #[arg(long, global = true, value_name = "URL", default_value = "http://127.0.0.1:9180")]
    admin: String,
    /// A file with the admin token [default: the environment variable UMAVEZ_ADMIN_TOKEN]
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Trust these roots, PEM, in place of the system's, where the URL is https://
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// A client certificate and its key, both PEM, for an admin listener that asks for one
    #[arg(long, global = true, num_args = 2, value_names = ["CHAIN", "KEY"])]
    certificate: Option<Vec<PathBuf>>,
}

#[derive(Subcommand)]
enum Action {
    /// Where an event stands
    Show(Key),
    /// Events that wait for a person
    Held(Limit),
    /// What people changed, latest first
    Actions(Limit),
    /// The event happened: copies are answered as duplicates
    MarkDone(Key),
    /// The event did not happen: the next copy is forwarded
    Release(Key),
    /// Forget the event: the next copy is its first
    Forget(Key),
    /// Let one more copy of a done event through
    AllowOnce(Key),
    /// Forward the stored request of a held event now
    Replay(Key),
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Key {
    /// The event's key
    #[arg(value_name = "KEY")]
    key: Option<String>,
    /// The event's digest, 32 hex digits, in place of its key
    #[arg(long, value_name = "HEX")]
    digest: Option<String>,
}

#[derive(Args)]
struct Limit {
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

impl Action {
    /// Method, path and query of the API.
    fn request(&self) -> Result<(Method, String), Failure> {
        Ok(match self {
            Self::Show(key) => (Method::GET, format!("/events?{}", key.query()?)),
            Self::Held(Limit { limit }) => (Method::GET, format!("/events/held?limit={limit}")),
            Self::Actions(Limit { limit }) => (Method::GET, format!("/actions?limit={limit}")),
            Self::MarkDone(key) => (Method::POST, format!("/events/mark-done?{}", key.query()?)),
            Self::Release(key) => (Method::POST, format!("/events/release?{}", key.query()?)),
            Self::Forget(key) => (Method::POST, format!("/events/forget?{}", key.query()?)),
            Self::AllowOnce(key) => (Method::POST, format!("/events/allow-once?{}", key.query()?)),
            Self::Replay(key) => (Method::POST, format!("/events/replay?{}", key.query()?)),
        })
    }
}

impl Key {
    fn query(&self) -> Result<String, Failure> {
        match (&self.key, &self.digest) {
            (_, Some(digest))
                if digest.len() == 32 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
            {
                Ok(format!("digest={digest}"))
            }
            (_, Some(digest)) => {
                Err(Failure::Usage(format!("--digest: {digest:?} is no digest; write its 32 hex digits")))
            }
            (Some(key), None) => Ok(format!("key={}", utf8_percent_encode(key, NON_ALPHANUMERIC))),
            (None, None) => Err(Failure::Usage("name an event by its key, or by --digest".to_owned())),
        }
    }
}

impl Events {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let (method, target) = self.action.request()?;
        let base: Option<Uri> = self.admin.parse().ok();
        let base =
            base.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https"))).ok_or_else(|| {
                Failure::Usage(format!(
                    "--admin: {:?} is no URL; write http://host:port or https://host:port",
                    self.admin
                ))
            })?;
        let authority =
            base.authority().ok_or_else(|| Failure::Usage("--admin: names no host".to_owned()))?;
        let mut request = Request::builder()
            .method(method)
            .uri(&target)
            .header(header::HOST, authority.as_str())
            .header(header::CONTENT_LENGTH, 0);
        if let Some(token) = self.token()? {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Empty::new()).map_err(|_| {
            Failure::Usage(
                "the token holds characters that a header may not; is it the right file?".to_owned(),
            )
        })?;
        let address = (authority.host().trim_matches(['[', ']']), authority.port_u16().unwrap_or(9180));
        let tls = self.tls()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let answer = runtime.context("cannot start")?.block_on(async {
            let tls = (base.scheme_str() == Some("https")).then_some(&tls);
            let answer = ask(address, tls, request);
            tokio::time::timeout(PATIENCE, answer)
                .await
                .unwrap_or_else(|_| Err(anyhow!("no answer within {} s", PATIENCE.as_secs())))
                .with_context(|| format!("the gateway at {} did not do it", self.admin))
        })?;
        print(&answer)
    }

    /// What an `https://` listener is asked with.
    fn tls(&self) -> Result<AppTls, Failure> {
        let client = match self.certificate.as_deref() {
            Some([chain, key]) => Some(Pair { chain: chain.clone(), key: key.clone() }),
            Some(_) | None => None,
        };
        let tls = AppTls::new();
        tls.replace(&AppFiles { ca: self.ca.clone(), client })
            .map_err(|troubles| Failure::Usage(format!("--ca, --certificate: {troubles}")))?;
        Ok(tls)
    }

    fn token(&self) -> Result<Option<String>, Failure> {
        let Some(file) = &self.token_file else {
            return Ok(environment().remove(TOKEN_VARIABLE).filter(|token| !token.is_empty()));
        };
        match std::fs::read_to_string(file) {
            Ok(token) => Ok(Some(token.trim_end().to_owned())),
            Err(error) => Err(Failure::Usage(format!("--token-file: {}: {error}", file.display()))),
        }
    }
}

/// Sends one request; gives the answer's JSON, indented, or what went wrong.
async fn ask(
    address: (&str, u16),
    tls: Option<&AppTls>,
    request: Request<Empty<Bytes>>,
) -> anyhow::Result<String> {
    let stream = tokio::net::TcpStream::connect(address).await.context("cannot connect; is it running?")?;
    match tls {
        None => exchange(stream, request).await,
        Some(tls) => {
            let stream = tls.connect(address.0, Speaking::Http1, stream).await;
            let stream = stream.map_err(|error| anyhow!("the TLS handshake failed: {error}"))?;
            exchange(stream, request).await
        }
    }
}

async fn exchange<S>(stream: S, request: Request<Empty<Bytes>>) -> anyhow::Result<String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let exchange = async move {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        anyhow::Ok((status, body.map_err(|error| anyhow!(error))?.to_bytes()))
    };
    let (exchanged, _closed) = tokio::join!(exchange, connection);
    let (status, body) = exchanged?;
    let json: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
    if !status.is_success() {
        let text = json.as_ref().and_then(|json| json.get("error")).and_then(serde_json::Value::as_str);
        let text = text.map_or_else(|| String::from_utf8_lossy(&body).trim().to_owned(), str::to_owned);
        bail!("{status}{}{text}", if text.is_empty() { "" } else { ": " });
    }
    match json {
        Some(json) => Ok(format!("{json:#}\n")),
        None => Ok(String::from_utf8_lossy(&body).into_owned()),
    }
}
