//! Reads HTTP/1.1 messages off raw sockets, for both ends of a story: exact bytes, nothing normalised.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// A header as it stood on the wire.
pub(crate) type Header = (String, Vec<u8>);

/// A start line, headers in order, and nothing of the body.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) start_line: String,
    pub(crate) headers: Vec<Header>,
}

impl Head {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        header(&self.headers, name)
    }
}

/// The first value of a header, as text.
pub(crate) fn header(headers: &[Header], name: &str) -> Option<String> {
    all(headers, name).into_iter().next()
}

/// Every value of a header, in order, as text.
pub(crate) fn all(headers: &[Header], name: &str) -> Vec<String> {
    let named = headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
    named.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect()
}

/// A body as far as it came.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) bytes: Vec<u8>,
    /// False where the connection ended inside it.
    pub(crate) complete: bool,
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    None,
    Length(usize),
    Chunked,
    UntilClose,
}

/// A socket's reading side, with what was read too far.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    io: R,
    buffered: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(io: R) -> Self {
        Self { io, buffered: Vec::new() }
    }

    /// What was read beyond the last message, and the socket itself.
    pub(crate) fn into_parts(self) -> (R, Vec<u8>) {
        (self.io, self.buffered)
    }

    async fn more(&mut self) -> io::Result<bool> {
        // Not into an array: it would be a part of every future that waits for an answer.
        self.buffered.reserve(16 * 1024);
        Ok(self.io.read_buf(&mut self.buffered).await? > 0)
    }

    async fn take(&mut self, n: usize) -> io::Result<Body> {
        while self.buffered.len() < n {
            if !self.more().await.unwrap_or(false) {
                return Ok(Body { bytes: std::mem::take(&mut self.buffered), complete: false });
            }
        }
        Ok(Body { bytes: self.buffered.drain(..n).collect(), complete: true })
    }

    async fn line(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.buffered.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffered.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()));
            }
            if !self.more().await? {
                return Ok(None);
            }
        }
    }

    /// The next head; `None` where the peer closed in order before one began.
    pub(crate) async fn head(&mut self) -> io::Result<Option<Head>> {
        let end = loop {
            if let Some(at) = self.buffered.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            if !self.more().await? {
                if self.buffered.is_empty() {
                    return Ok(None);
                }
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let bytes: Vec<u8> = self.buffered.drain(..end).collect();
        let mut lines = bytes.split(|b| *b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let start_line = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
        let headers = lines.filter(|line| !line.is_empty()).map(split_header).collect();
        Ok(Some(Head { start_line, headers }))
    }

    pub(crate) async fn body(&mut self, framing: Framing) -> io::Result<Body> {
        match framing {
            Framing::None => Ok(Body { bytes: Vec::new(), complete: true }),
            Framing::Length(n) => self.take(n).await,
            Framing::Chunked => self.chunks().await,
            Framing::UntilClose => {
                while self.more().await? {}
                Ok(Body { bytes: std::mem::take(&mut self.buffered), complete: true })
            }
        }
    }

    async fn chunks(&mut self) -> io::Result<Body> {
        let mut bytes = Vec::new();
        loop {
            let Some(line) = self.line().await.unwrap_or(None) else {
                return Ok(Body { bytes, complete: false });
            };
            let size = line.split(';').next().unwrap_or_default();
            let Ok(size) = usize::from_str_radix(size.trim(), 16) else {
                return Ok(Body { bytes, complete: false });
            };
            if size == 0 {
                while self.line().await?.is_some_and(|trailer| !trailer.is_empty()) {}
                return Ok(Body { bytes, complete: true });
            }
            let chunk = self.take(size).await?;
            bytes.extend_from_slice(&chunk.bytes);
            if !chunk.complete || self.line().await?.is_none() {
                return Ok(Body { bytes, complete: false });
            }
        }
    }
}

fn split_header(line: &[u8]) -> Header {
    let colon = line.iter().position(|b| *b == b':').unwrap_or(line.len());
    let value = line.get(colon + 1..).unwrap_or_default();
    (String::from_utf8_lossy(&line[..colon]).into_owned(), value.trim_ascii().to_vec())
}

/// How a request's body ends, by its headers.
pub(crate) fn request_framing(head: &Head) -> Framing {
    if head.header("transfer-encoding").is_some_and(|te| te.to_ascii_lowercase().contains("chunked")) {
        return Framing::Chunked;
    }
    match head.header("content-length").and_then(|n| n.parse().ok()) {
        Some(n) => Framing::Length(n),
        None => Framing::None,
    }
}

/// How an answer's body ends, by its status and headers and the method that asked.
pub(crate) fn answer_framing(head: &Head, status: u16, method: &str) -> Framing {
    if method == "HEAD" || status == 204 || status == 304 || (100..200).contains(&status) {
        return Framing::None;
    }
    match request_framing(head) {
        Framing::None => Framing::UntilClose,
        known @ (Framing::Length(_) | Framing::Chunked | Framing::UntilClose) => known,
    }
}
