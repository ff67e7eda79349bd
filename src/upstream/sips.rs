//! A connection that is read little by little. HTTP/1.1 reads as much at once as its longest head may be (408 KiB from an
//! app), and passes it on in one piece: of a download that nobody reads such pieces would lie in several places.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, Take};

/// Most bytes of one read. One less than what the parser's buffer doubles to, so that it doesn't double again.
const READ_BYTES_MAX: u64 = 64 * 1024 - 1;

/// Reads at most 64 KiB at once; writes as its stream does.
#[derive(Debug)]
pub struct Sips<S>(Take<S>);

impl<S: AsyncRead> Sips<S> {
    pub fn new(stream: S) -> Self {
        Self(stream.take(READ_BYTES_MAX))
    }
}

impl<S: AsyncRead + Unpin> Sips<S> {
    fn stream(&mut self) -> Pin<&mut S> {
        Pin::new(self.0.get_mut())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Sips<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.set_limit(READ_BYTES_MAX);
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Sips<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}
