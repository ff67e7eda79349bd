//! Makes a connection to an app: name, TCP, TLS, HTTP. Names are resolved here, at each connection, never before.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use super::body::Body;
use super::early::Early;
use super::outcome::Cause;
use super::pool::{Connection, Lease, Pool};
use super::sips::Sips;
use crate::config::Target;
use crate::tls::{Apps, Speaking};

/// Most headers of an app's answer over HTTP/1.1. An answer with more can't be read, though the app has done its work.
const ANSWER_HEADERS_MAX: usize = 1000;
/// Most bytes of an answer's headers over HTTP/2; over HTTP/1.1 hyper reads as many.
const ANSWER_HEADER_BYTES_MAX: u32 = 408 * 1024;
/// Most bytes of one answer that an app may send over HTTP/2 before they are read.
const ANSWER_WINDOW_BYTES: u32 = 128 * 1024;
/// The same of all answers on one connection: more than they come to together, so that answers which nobody reads hold
/// up no other.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;

/// What making a connection needs.
pub(super) struct Connector {
    pub(super) connect_timeout: Duration,
    pub(super) tls: Arc<Apps>,
    /// The tasks that drive connections. They end with the pool, and nobody waits for them.
    pub(super) tasks: TaskTracker,
}

impl Connector {
    /// A new connection, within the connect timeout. A shared one is put into the pool.
    pub(super) async fn connect(&self, target: &Target, pool: &Arc<Pool>) -> Result<Connection, Cause> {
        tokio::time::timeout(self.connect_timeout, self.connect_unbounded(target, pool)).await?
    }

    async fn connect_unbounded(&self, target: &Target, pool: &Arc<Pool>) -> Result<Connection, Cause> {
        let stream = self.tcp(target).await?;
        if !target.is_secure() {
            return self.handshake(stream, target.http2, pool).await;
        }
        let speaking = if target.http2 { Speaking::Http2 } else { Speaking::Either };
        let name = target.server_name.as_deref().unwrap_or(bare_host(target));
        let stream = match &target.files {
            None => self.tls.shared.connect(name, speaking, stream).await?,
            Some(own) => self.tls.own_of(own)?.connect(name, speaking, stream).await?,
        };
        let http2 = target.http2 || stream.get_ref().1.alpn_protocol() == Some(b"h2");
        pool.agreed(http2);
        self.handshake(stream, http2, pool).await
    }

    /// Tries each address of the name in turn; one that doesn't answer costs at most half of what is left.
    async fn tcp(&self, target: &Target) -> Result<TcpStream, Cause> {
        let port = target.authority.port_u16().unwrap_or(if target.is_secure() { 443 } else { 80 });
        let addresses: Vec<SocketAddr> = tokio::net::lookup_host((bare_host(target), port)).await?.collect();
        let mut patience = self.connect_timeout;
        let mut last: Cause = "the name has no address".into();
        for (index, address) in addresses.iter().enumerate() {
            if index + 1 < addresses.len() {
                patience /= 2;
            }
            match tokio::time::timeout(patience, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Ok(Err(error)) => last = error.into(),
                Err(elapsed) => last = elapsed.into(),
            }
        }
        Err(last)
    }

    async fn handshake<S>(&self, stream: S, http2: bool, pool: &Arc<Pool>) -> Result<Connection, Cause>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if http2 {
            let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .keep_alive_interval(Duration::from_secs(10))
                .keep_alive_timeout(Duration::from_secs(10))
                .max_header_list_size(ANSWER_HEADER_BYTES_MAX)
                .initial_stream_window_size(ANSWER_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
            let (sender, connection) = builder.handshake::<_, Body>(TokioIo::new(Sips::new(stream))).await?;
            self.tasks.spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection to the app ended");
                }
            });
            pool.share(sender.clone());
            return Ok(Connection::Http2(sender));
        }
        let mut builder = hyper::client::conn::http1::Builder::new();
        builder.max_headers(ANSWER_HEADERS_MAX);
        let io = TokioIo::new(Sips::new(Early::new(stream)));
        let (mut sender, connection) = builder.handshake::<_, Body>(io).await?;
        self.tasks.spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to the app ended");
            }
        });
        sender.ready().await?;
        Ok(Connection::Http1(Lease::fresh(pool, sender)))
    }
}

/// The host without the brackets of an IPv6 literal.
fn bare_host(target: &Target) -> &str {
    let host = target.authority.host();
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}
