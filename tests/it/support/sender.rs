//! The provider that sends: HTTP/1.1 over raw sockets, so that a story decides every byte; and signatures as the
//! providers make them.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::hmac;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinSet;

use super::http1::{self, Header, Reader};
use super::{PATIENCE, within};

/// A request to send: what is written here is what goes out.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Vec<Header>,
    pub(crate) body: Vec<u8>,
    chunked: bool,
}

impl Delivery {
    pub(crate) fn new(method: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            chunked: false,
        }
    }

    /// A JSON POST.
    pub(crate) fn json(target: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::new("POST", target).header("Content-Type", "application/json").body(body)
    }

    pub(crate) fn header(self, name: &str, value: &str) -> Self {
        self.raw_header(name, value.as_bytes())
    }

    pub(crate) fn raw_header(mut self, name: &str, value: &[u8]) -> Self {
        self.headers.push((name.to_owned(), value.to_vec()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends the body in chunks of 16 KiB instead of under a `Content-Length`.
    pub(crate) fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    /// Signed as Meta signs: both hub headers over the exact bytes.
    pub(crate) fn signed_by_meta(self, secret: &str) -> Self {
        let new = hub_sha256(secret, &self.body);
        let old = hub_sha1(secret, &self.body);
        self.header("X-Hub-Signature-256", &new).header("X-Hub-Signature", &old)
    }

    /// Signed as Stripe signs, now.
    pub(crate) fn signed_by_stripe(self, secret: &str) -> Self {
        let at = unix_seconds();
        self.signed_by_stripe_at(&[secret], at)
    }

    pub(crate) fn signed_by_stripe_at(self, secrets: &[&str], at: u64) -> Self {
        let mut value = format!("t={at}");
        for secret in secrets {
            value.push_str(&format!(",v1={}", stripe_v1(secret, at, &self.body)));
        }
        self.header("Stripe-Signature", &value)
    }

    /// The request as it goes out; `Host` and framing are added unless the story set them.
    pub(crate) fn to_bytes(&self, host: &str) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        let set = |name: &str| http1::header(&self.headers, name).is_some();
        if !set("host") {
            bytes.extend_from_slice(format!("Host: {host}\r\n").as_bytes());
        }
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        if self.chunked {
            bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            for chunk in self.body.chunks(16 * 1024) {
                bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
            return bytes;
        }
        let has_body = !self.body.is_empty() || self.method == "POST" || self.method == "PUT";
        if has_body && !set("content-length") {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n", self.body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// `sha256=<hex>` of Meta's signature.
pub(crate) fn hub_sha256(secret: &str, body: &[u8]) -> String {
    format!("sha256={}", hex::encode(sign(hmac::HMAC_SHA256, secret, body)))
}

/// `sha1=<hex>` of Meta's legacy signature.
pub(crate) fn hub_sha1(secret: &str, body: &[u8]) -> String {
    format!("sha1={}", hex::encode(sign(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret, body)))
}

/// The hex of one `v1` of Stripe's signature.
pub(crate) fn stripe_v1(secret: &str, at: u64, body: &[u8]) -> String {
    let mut signed = format!("{at}.").into_bytes();
    signed.extend_from_slice(body);
    hex::encode(sign(hmac::HMAC_SHA256, secret, &signed))
}

fn sign(algorithm: hmac::Algorithm, secret: &str, bytes: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(algorithm, secret.as_bytes()), bytes).as_ref().to_vec()
}

pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// What the sender was answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<Header>,
    pub(crate) body: Vec<u8>,
    /// False where the connection ended inside the answer.
    pub(crate) complete: bool,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        http1::header(&self.headers, name)
    }

    pub(crate) fn headers_named(&self, name: &str) -> Vec<String> {
        http1::all(&self.headers, name)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e} in {:?}", self.text()))
    }

    /// What the gateway said of the request in `Umavez`; empty where it said nothing.
    pub(crate) fn verdict(&self) -> String {
        self.header("umavez").unwrap_or_default()
    }

    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.headers_named("idempotency-replayed") == ["true"]
    }

    /// True for an answer that says "come again": 409, 425 or 503 with `Retry-After`.
    pub(crate) fn asks_for_a_retry(&self) -> bool {
        matches!(self.status, 409 | 425 | 503) && self.header("retry-after").is_some()
    }
}

/// A connection whose every byte the story decides.
pub(crate) struct Connection {
    reader: Reader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    host: String,
}

impl Connection {
    pub(crate) async fn to(address: SocketAddr) -> Self {
        Self::try_to(address).await.unwrap()
    }

    pub(crate) async fn try_to(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (reading, writer) = stream.into_split();
        Ok(Self { reader: Reader::new(reading), writer, host: address.to_string() })
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.writer.write_all(bytes).await?;
        self.writer.flush().await
    }

    pub(crate) async fn send(&mut self, delivery: &Delivery) -> Answer {
        let bytes = delivery.to_bytes(&self.host);
        // A gateway may refuse a body before it read all of it: the answer counts, not the write.
        self.write(&bytes).await.ok();
        within("an answer", self.answer(&delivery.method)).await.unwrap()
    }

    /// As [`Self::send`]; an error where the gateway died or hung up.
    pub(crate) async fn try_send(&mut self, delivery: &Delivery) -> std::io::Result<Answer> {
        let bytes = delivery.to_bytes(&self.host);
        self.write(&bytes).await.ok();
        self.answer(&delivery.method).await
    }

    /// The next final answer; interim ones are passed over.
    pub(crate) async fn answer(&mut self, method: &str) -> std::io::Result<Answer> {
        loop {
            let answer = self.any_answer(method).await?;
            if answer.status >= 200 || answer.status == 101 {
                return Ok(answer);
            }
        }
    }

    /// The next answer, interim ones included.
    pub(crate) async fn any_answer(&mut self, method: &str) -> std::io::Result<Answer> {
        let head = self.reader.head().await?.ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let status = head.start_line.split(' ').nth(1).and_then(|s| s.parse().ok());
        let status = status.ok_or_else(|| std::io::Error::other(head.start_line.clone()))?;
        let body = self.reader.body(http1::answer_framing(&head, status, method)).await?;
        Ok(Answer { status, headers: head.headers, body: body.bytes, complete: body.complete })
    }

    /// True once the gateway has closed its side.
    pub(crate) async fn is_closed_within(&mut self, patience: Duration) -> bool {
        let ended = tokio::time::timeout(patience, self.reader.head()).await;
        matches!(ended, Ok(Ok(None) | Err(_)))
    }

    /// Closes the sending side; answers can still be read.
    pub(crate) async fn half_close(&mut self) {
        self.writer.shutdown().await.unwrap();
    }

    /// The socket itself and what was read beyond the last answer, for upgrades.
    pub(crate) fn into_socket(self) -> (TcpStream, Vec<u8>) {
        let (reading, buffered) = self.reader.into_parts();
        (reading.reunite(self.writer).unwrap(), buffered)
    }
}

/// Sends on a connection of its own.
pub(crate) async fn send(address: SocketAddr, delivery: &Delivery) -> Answer {
    Connection::to(address).await.send(delivery).await
}

/// As [`send`]; an error where no connection could be made or it broke before an answer.
pub(crate) async fn try_send(address: SocketAddr, delivery: &Delivery) -> std::io::Result<Answer> {
    Connection::try_to(address).await?.try_send(delivery).await
}

/// Sends everything at once, each on a connection of its own; answers come in the order of the deliveries.
pub(crate) async fn send_all(deliveries: Vec<(SocketAddr, Delivery)>) -> Vec<Answer> {
    let mut sends = JoinSet::new();
    for (n, (address, delivery)) in deliveries.into_iter().enumerate() {
        sends.spawn(async move { (n, send(address, &delivery).await) });
    }
    let mut answers = sends.join_all().await;
    answers.sort_by_key(|(n, _)| *n);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Sends until a 2xx comes, as providers do, with a short pause between tries; returns every status it was told.
pub(crate) async fn send_until_success(address: SocketAddr, delivery: &Delivery) -> Vec<u16> {
    let mut told = Vec::new();
    let began = std::time::Instant::now();
    loop {
        let answer = tokio::time::timeout(Duration::from_secs(12), try_send(address, delivery)).await;
        match answer {
            Ok(Ok(answer)) if answer.complete => {
                told.push(answer.status);
                if answer.is_success() {
                    return told;
                }
            }
            Ok(Ok(_) | Err(_)) | Err(_) => told.push(0),
        }
        assert!(began.elapsed() < PATIENCE, "no 2xx after {} tries: {told:?}", told.len());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
