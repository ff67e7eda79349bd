//! Asks a running gateway's admin listener, for the commands that do: where it is, whom to trust, and one request.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use clap::Args;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use tokio::io::{AsyncRead, AsyncWrite};
use umavez::config::Config;
use umavez::tls::{AppFiles, AppTls, Pair, Speaking};

use super::{FILE, Failure, environment};

/// Longest answer of the gateway, bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The admin listener where no file says otherwise.
const USUAL: &str = "http://127.0.0.1:9180";

/// Where the admin listener is.
#[derive(Args)]
pub(super) struct AdminAt {
    /// The gateway's admin listener [default: the [listen] admin of ./umavez.toml where that is there and has one, else
    /// http://127.0.0.1:9180]
    #[arg(long, global = true, value_name = "URL")]
    admin: Option<String>,
    /// Trust these roots, PEM, in place of the system's, where the URL is https://
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// A client certificate and its key, both PEM, for an admin listener that asks for one
    #[arg(long, global = true, num_args = 2, value_names = ["CHAIN", "KEY"])]
    certificate: Option<Vec<PathBuf>>,
}

/// Where the gateway is asked that nobody named.
fn usual() -> String {
    Config::admin_url(Path::new(FILE), &environment()).unwrap_or_else(|| USUAL.to_owned())
}

impl AdminAt {
    /// Sends one request; gives the answer's JSON, indented, or what went wrong.
    pub(super) fn ask(
        &self,
        method: Method,
        target: &str,
        token: Option<&str>,
        patience: Duration,
    ) -> Result<String, Failure> {
        let admin = self.admin.clone().unwrap_or_else(usual);
        let (failing, refused) = if method == Method::GET {
            ("can't be asked", "answers")
        } else {
            ("did not do it", "did not do it")
        };
        let base: Option<Uri> = admin.parse().ok();
        let base =
            base.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https"))).ok_or_else(|| {
                Failure::Usage(format!(
                    "--admin: {:?} is no URL; write http://host:port or https://host:port",
                    admin
                ))
            })?;
        let authority =
            base.authority().ok_or_else(|| Failure::Usage("--admin: names no host".to_owned()))?;
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header(header::HOST, authority.as_str())
            .header(header::CONTENT_LENGTH, 0);
        if let Some(token) = token {
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
            tokio::time::timeout(patience, send(address, tls, request))
                .await
                .unwrap_or_else(|_| Err(anyhow!("no answer within {} s", patience.as_secs())))
                .with_context(|| format!("the gateway at {admin} {failing}"))
        });
        let (status, body) = answer?;
        Ok(read(status, &body).with_context(|| format!("the gateway at {admin} {refused}"))?)
    }

    /// What an `https://` listener is asked with.
    fn tls(&self) -> Result<AppTls, Failure> {
        let client = match self.certificate.as_deref() {
            Some([chain, key]) => Some(Pair { chain: chain.clone(), key: key.clone() }),
            Some(_) | None => None,
        };
        let tls = AppTls::towards("admin");
        tls.replace(&AppFiles { ca: self.ca.clone(), client })
            .map_err(|troubles| Failure::Usage(format!("--ca, --certificate: {troubles}")))?;
        Ok(tls)
    }
}

async fn send(
    address: (&str, u16),
    tls: Option<&AppTls>,
    request: Request<Empty<Bytes>>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let stream = tokio::net::TcpStream::connect(address)
        .await
        .context("cannot connect; is it running? Where it listens elsewhere, say so with --admin URL")?;
    match tls {
        None => exchange(stream, request).await,
        Some(tls) => {
            let stream = tls.connect(address.0, Speaking::Http1, stream).await;
            let stream = stream.map_err(|error| anyhow!("the TLS handshake failed: {error}"))?;
            exchange(stream, request).await
        }
    }
}

async fn exchange<S>(stream: S, request: Request<Empty<Bytes>>) -> anyhow::Result<(StatusCode, Bytes)>
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
    exchanged
}

/// The answer's text, or the error that it tells.
fn read(status: StatusCode, body: &Bytes) -> anyhow::Result<String> {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    if !status.is_success() {
        let text = json.as_ref().and_then(|json| json.get("error")).and_then(serde_json::Value::as_str);
        let text = text.map_or_else(|| String::from_utf8_lossy(body).trim().to_owned(), str::to_owned);
        bail!("{status}{}{text}", if text.is_empty() { "" } else { ": " });
    }
    match json {
        Some(json) => Ok(format!("{json:#}\n")),
        None => Ok(String::from_utf8_lossy(body).into_owned()),
    }
}
