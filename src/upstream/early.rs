//! A connection whose other end may answer before it has read everything, and close: the answer (413, 401) has arrived by
//! then, and what was still to be written has nowhere to go. The failed write waits until the answer has been read.

use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long a failed write waits at most for what has arrived to be read.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tells that nothing can be written any more only when nothing can be read any more either.
#[derive(Debug)]
pub(super) struct Early<S> {
    stream: S,
    /// What a write met.
    fault: Option<ErrorKind>,
    /// Whether everything that had arrived by then has been read.
    ended: bool,
    /// Who waits to be told.
    writer: Option<Waker>,
    patience: Option<Pin<Box<Sleep>>>,
}

impl<S: Unpin> Early<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, fault: None, ended: false, writer: None, patience: None }
    }

    fn stream(&mut self) -> Pin<&mut S> {
        Pin::new(&mut self.stream)
    }

    fn write<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match self.fault {
            Some(kind) if self.ended => return Poll::Ready(Err(kind.into())),
            Some(_) => {}
            None => match ready!(write(self.stream(), cx)) {
                Err(error) if is_end(error.kind()) => {
                    self.fault = Some(error.kind());
                    self.patience = Some(Box::pin(tokio::time::sleep(PATIENCE)));
                    cx.waker().wake_by_ref(); // whoever writes here reads too
                }
                result => return Poll::Ready(result),
            },
        }
        self.writer = Some(cx.waker().clone());
        if let Some(patience) = &mut self.patience {
            ready!(patience.as_mut().poll(cx));
        }
        self.ended = true;
        Poll::Ready(Err(self.fault.unwrap_or(ErrorKind::BrokenPipe).into()))
    }
}

/// Whether the other end is gone.
pub(super) fn is_end(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted)
}

impl<S: AsyncRead + Unpin> AsyncRead for Early<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = ready!(self.stream().poll_read(cx, buffer));
        let nothing = buffer.remaining() > 0 && buffer.filled().len() == before;
        if self.fault.is_some() && (nothing || result.is_err()) {
            self.ended = true;
            if let Some(writer) = self.writer.take() {
                writer.wake();
            }
        }
        Poll::Ready(result)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Early<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(cx, |stream, cx| stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}
