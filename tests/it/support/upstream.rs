//! The app behind the gateway, scripted: records every request byte for byte, and answers as a story says.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::http1::{self, Header, Reader};
use super::within;

/// One request as the app saw it.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) method: String,
    /// The request target as it stood on the request line.
    pub(crate) target: String,
    pub(crate) headers: Vec<Header>,
    pub(crate) body: Vec<u8>,
    /// Which of the app's connections carried it, counted from 1.
    pub(crate) connection: usize,
}

impl Received {
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
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The attempt that the gateway told the app; 1 where it told none.
    pub(crate) fn attempt(&self) -> u32 {
        self.header("umavez-attempt").map_or(1, |n| n.parse().unwrap())
    }
}

/// Opened by the test when the app may go on.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    pub(crate) fn closed() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }

    pub(crate) async fn passed(&self) {
        self.0.subscribe().wait_for(|open| *open).await.unwrap();
    }
}

/// What the app does with one request, in order.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    steps: Vec<Step>,
    after: After,
}

#[derive(Clone, Debug)]
enum Step {
    Wait(Duration),
    Gate(Gate),
    Write(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    KeepAlive,
    Close,
    /// Neither answers nor closes.
    Silence,
}

impl Reply {
    /// A complete answer with a `Content-Length`.
    pub(crate) fn new(status: u16, body: &str) -> Self {
        Self::with_headers(status, &[], body.as_bytes())
    }

    pub(crate) fn with_headers(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Self {
        let mut bytes = format!("HTTP/1.1 {status} Scripted\r\n").into_bytes();
        for (name, value) in headers {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        if status != 204 && status != 304 {
            bytes.extend_from_slice(format!("content-length: {}\r\n", body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body);
        Self::raw(&bytes)
    }

    /// Exactly these bytes.
    pub(crate) fn raw(bytes: &[u8]) -> Self {
        Self { steps: vec![Step::Write(bytes.to_vec())], after: After::KeepAlive }
    }

    /// Reads the request, then closes without a word.
    pub(crate) fn hang_up() -> Self {
        Self { steps: Vec::new(), after: After::Close }
    }

    /// Reads the request and never answers.
    pub(crate) fn silence() -> Self {
        Self { steps: Vec::new(), after: After::Silence }
    }

    /// Waits before the answer.
    pub(crate) fn after(mut self, delay: Duration) -> Self {
        self.steps.insert(0, Step::Wait(delay));
        self
    }

    /// Answers once the gate is open.
    pub(crate) fn behind(mut self, gate: &Gate) -> Self {
        self.steps.insert(0, Step::Gate(gate.clone()));
        self
    }

    /// Writes more after a pause.
    pub(crate) fn then(mut self, pause: Duration, bytes: &[u8]) -> Self {
        self.steps.push(Step::Wait(pause));
        self.steps.push(Step::Write(bytes.to_vec()));
        self
    }

    /// Closes the connection after the answer.
    pub(crate) fn closing(mut self) -> Self {
        self.after = After::Close;
        self
    }
}

type Decide = dyn Fn(&Received, usize) -> Reply + Send + Sync;

struct State {
    decide: Box<Decide>,
    requests: Mutex<Vec<Received>>,
    arrived: watch::Sender<usize>,
    answered: watch::Sender<usize>,
}

/// A scripted app on a loopback port.
pub(crate) struct Upstream {
    address: SocketAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

impl Upstream {
    /// Answers every request alike.
    pub(crate) async fn answering(status: u16, body: &str) -> Self {
        let reply = Reply::new(status, body);
        Self::deciding(move |_, _| reply.clone()).await
    }

    /// Answers the first request with the first reply and so on; the last one repeats.
    pub(crate) async fn scripted(replies: impl IntoIterator<Item = Reply>) -> Self {
        let replies: Vec<Reply> = replies.into_iter().collect();
        Self::deciding(move |_, nth| replies[(nth - 1).min(replies.len() - 1)].clone()).await
    }

    /// Asks `decide` with each request and its number, counted from 1.
    pub(crate) async fn deciding(decide: impl Fn(&Received, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, decide)
    }

    /// As [`Self::deciding`], on a listener that the story bound.
    pub(crate) fn on(
        listener: TcpListener,
        decide: impl Fn(&Received, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            decide: Box::new(decide),
            requests: Mutex::default(),
            arrived: watch::Sender::new(0),
            answered: watch::Sender::new(0),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&state)));
        Self { address, state, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many requests came completely.
    pub(crate) fn received(&self) -> usize {
        *self.state.arrived.borrow()
    }

    pub(crate) fn requests(&self) -> Vec<Received> {
        self.state.requests.lock().unwrap().clone()
    }

    pub(crate) fn last(&self) -> Received {
        self.state.requests.lock().unwrap().last().unwrap().clone()
    }

    /// Waits until so many requests came.
    pub(crate) async fn until_received(&self, n: usize) {
        let mut arrived = self.state.arrived.subscribe();
        within(&format!("request {n} at the app"), arrived.wait_for(|count| *count >= n)).await.unwrap();
    }

    /// Waits until so many answers were written to their end.
    pub(crate) async fn until_answered(&self, n: usize) {
        let mut answered = self.state.answered.subscribe();
        within(&format!("answer {n} of the app"), answered.wait_for(|count| *count >= n)).await.unwrap();
    }

    /// Stops listening and drops every connection; returns the port to come back on.
    pub(crate) async fn stop(self) -> SocketAddr {
        self.task.abort();
        while !self.task.is_finished() {
            tokio::task::yield_now().await;
        }
        self.address
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    let mut number = 0;
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        number += 1;
        connections.spawn(serve(stream, number, Arc::clone(&state)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, connection: usize, state: Arc<State>) {
    stream.set_nodelay(true).unwrap();
    let (reading, mut writing) = stream.into_split();
    let mut reader = Reader::new(reading);
    while let Ok(Some(head)) = reader.head().await {
        let Ok(body) = reader.body(http1::request_framing(&head)).await else { return };
        if !body.complete {
            return;
        }
        let mut line = head.start_line.split(' ');
        let request = Received {
            method: line.next().unwrap_or_default().to_owned(),
            target: line.next().unwrap_or_default().to_owned(),
            headers: head.headers,
            body: body.bytes,
            connection,
        };
        let nth = {
            let mut requests = state.requests.lock().unwrap();
            requests.push(request.clone());
            requests.len()
        };
        state.arrived.send_replace(nth);
        let reply = (state.decide)(&request, nth);
        if perform(&reply, &mut writing, &state).await.is_err() {
            return;
        }
        match reply.after {
            After::KeepAlive => {}
            After::Close => return,
            After::Silence => std::future::pending().await,
        }
    }
}

async fn perform(
    reply: &Reply,
    writing: &mut (impl AsyncWrite + Unpin),
    state: &State,
) -> std::io::Result<()> {
    for step in &reply.steps {
        match step {
            Step::Wait(delay) => tokio::time::sleep(*delay).await,
            Step::Gate(gate) => gate.passed().await,
            Step::Write(bytes) => writing.write_all(bytes).await?,
        }
    }
    writing.flush().await?;
    if !reply.steps.is_empty() {
        state.answered.send_modify(|n| *n += 1);
    }
    Ok(())
}
