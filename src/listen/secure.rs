//! TLS on an accepted connection: the handshake has the time of the first request's head, then it is a connection like
//! any other. Who speaks plain HTTP to it is told so.

use std::io;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;

use super::watch::{Watch, Watched};
use super::{ClientNames, Handler, Listening, Peer, connection};
use crate::tls::{Accepted, Acceptor, Secure};

/// The first byte of every TLS connection: a handshake record.
const HANDSHAKE: u8 = 0x16;

const PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 55\r\n\
connection: close\r\n\r\nthis port speaks TLS only: write https:// into the URL\n\n";

/// How a connection began.
#[expect(clippy::large_enum_variant, reason = "nearly every one is the large one, and it is moved once")]
enum Begun {
    Encrypted(Secure<Watched>),
    /// What came is no TLS.
    Plain(Watched),
    /// An authority has seen that a name is ours: nobody is there to be served.
    Proved,
}

/// Serves an encrypted connection until either side ends it.
pub(super) async fn drive<H: Handler>(
    stream: Watched,
    watch: Arc<Watch>,
    acceptor: Acceptor,
    mut peer: Peer,
    handler: H,
    listening: Arc<Listening>,
) {
    let due = watch.first_head_due(&listening.limits);
    let begun = tokio::select! {
        biased;
        () = connection::has_lingered(&listening) => return,
        () = listening.slots.wanted() => return,
        begun = begin(stream, acceptor, &listening) => begun,
        () = tokio::time::sleep_until(due.into()) => {
            listening.tls.was_too_slow();
            tracing::debug!(peer = %peer.address, "a TLS handshake took too long");
            return;
        }
    };
    match begun {
        Ok(Begun::Encrypted(secure)) => {
            peer.client = (!secure.client_names.is_empty()).then(|| ClientNames(secure.client_names.into()));
            connection::drive(secure.stream, watch, peer, handler, listening).await;
        }
        Ok(Begun::Plain(stream)) => {
            listening.tls.was_plain();
            tracing::debug!(peer = %peer.address, "a peer speaks no TLS");
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(due.into()) => {}
                told = tell(stream, &watch) => drop(told), // who has gone can't be told
            }
        }
        Ok(Begun::Proved) => {
            tracing::info!(peer = %peer.address, "an authority looked at the proof of a name")
        }
        Err(error) => tracing::debug!(%error, peer = %peer.address, "a TLS handshake failed"),
    }
}

async fn begin(stream: Watched, acceptor: Acceptor, listening: &Listening) -> io::Result<Begun> {
    if stream.first_byte().await? != HANDSHAKE {
        return Ok(Begun::Plain(stream));
    }
    Ok(match listening.tls.accept(acceptor, stream).await? {
        Accepted::Secure(secure) => Begun::Encrypted(secure),
        Accepted::Challenge => Begun::Proved,
    })
}

/// Says what is wrong, and reads on for a while, so that the answer can be read.
async fn tell(mut stream: Watched, watch: &Watch) -> io::Result<()> {
    watch.answered(http::StatusCode::BAD_REQUEST);
    stream.write_all(PLAIN).await?;
    stream.shutdown().await
}
