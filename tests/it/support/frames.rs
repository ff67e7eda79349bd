//! HTTP/2 frame by frame, for both ends of a story: what no library sends.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::within;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Data = 0,
    Headers = 1,
    Reset = 3,
    Settings = 4,
    Ping = 6,
    GoAway = 7,
}

/// A frame's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flags {
    None = 0,
    /// END_STREAM; of settings and pings, ACK.
    End = 1,
    EndHeaders = 4,
    EndHeadersAndStream = 5,
}

pub(crate) fn frame(kind: Kind, flags: Flags, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind as u8, flags as u8]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header as HPACK writes it without any table.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let short = |text: &str| u8::try_from(text.len()).ok().filter(|length| *length < 127).unwrap();
    let mut bytes = vec![0, short(name)];
    bytes.extend(name.as_bytes());
    bytes.push(short(value));
    bytes.extend(value.as_bytes());
    bytes
}

pub(crate) fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    headers.iter().flat_map(|(name, value)| literal(name, value)).collect()
}

/// One HTTP/2 connection of a sender.
pub(crate) struct Sender(TcpStream);

impl Sender {
    pub(crate) async fn to(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(PREFACE).await.unwrap();
        stream.write_all(&frame(Kind::Settings, Flags::None, 0, &[])).await.unwrap();
        Self(stream)
    }

    /// A POST's head, whose body is still to come.
    pub(crate) async fn post(&mut self, stream: u32, path: &str, headers: &[(&str, &str)]) {
        let pseudo =
            [(":method", "POST"), (":scheme", "http"), (":authority", "hooks.example"), (":path", path)];
        let block = block(&[&pseudo[..], headers].concat());
        self.write(&frame(Kind::Headers, Flags::EndHeaders, stream, &block)).await;
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }
}

/// What an app writes once a request has come whole, told its stream.
pub(crate) type Script = fn(u32) -> Vec<u8>;

/// An app that speaks HTTP/2 with prior knowledge, and answers each request with the next script; with none left, 200.
pub(crate) struct Scripted {
    address: SocketAddr,
    left: Arc<Mutex<VecDeque<Script>>>,
}

impl Scripted {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let left = Arc::new(Mutex::new(VecDeque::new()));
        let scripts = Arc::clone(&left);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, Arc::clone(&scripts)));
            }
        });
        Self { address, left }
    }

    pub(crate) fn url(&self) -> String {
        format!("h2c://{}", self.address)
    }

    /// The answer to the next request.
    pub(crate) fn next(&self, script: Script) {
        self.left.lock().unwrap().push_back(script);
    }
}

/// Ends where the gateway does.
async fn serve(mut stream: TcpStream, scripts: Arc<Mutex<VecDeque<Script>>>) -> std::io::Result<()> {
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface).await?;
    stream.write_all(&frame(Kind::Settings, Flags::None, 0, &[])).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let (kind, flags) = (head[3], head[4]);
        let id = u32::from_be_bytes(head[5..].try_into().unwrap());
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await?;
        let acknowledged = flags & Flags::End as u8 != 0;
        if kind == Kind::Settings as u8 && !acknowledged {
            stream.write_all(&frame(Kind::Settings, Flags::End, 0, &[])).await?;
        } else if kind == Kind::Ping as u8 && !acknowledged {
            stream.write_all(&frame(Kind::Ping, Flags::End, 0, &payload)).await?;
        } else if (kind == Kind::Headers as u8 || kind == Kind::Data as u8) && acknowledged {
            let script = scripts.lock().unwrap().pop_front();
            let whole: Script =
                |id| frame(Kind::Headers, Flags::EndHeadersAndStream, id, &block(&[(":status", "200")]));
            within("the answer to be taken", stream.write_all(&script.unwrap_or(whole)(id))).await?;
        }
    }
}
