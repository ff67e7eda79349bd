//! A TCP proxy between the gateway and Redis, Postgres or the app: it cuts, stalls, slows and resumes.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// How the wire behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Open,
    /// Every connection is closed, and new ones as soon as they come.
    Cut,
    /// Connections stay up, and nothing moves.
    Stalled,
    /// What the client says arrives; what the server answers is lost.
    Deaf,
    /// Each piece of an answer waits so long.
    Slow(Duration),
}

pub(crate) struct Wire {
    address: SocketAddr,
    line: watch::Sender<Line>,
    task: JoinHandle<()>,
}

impl Wire {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let line = watch::Sender::new(Line::Open);
        let task = tokio::spawn(accept(listener, server, line.subscribe()));
        Self { address, line, task }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn set(&self, line: Line) {
        self.line.send_replace(line);
    }

    pub(crate) fn cut(&self) {
        self.set(Line::Cut);
    }

    pub(crate) fn resume(&self) {
        self.set(Line::Open);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, line: watch::Receiver<Line>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        if *line.borrow() == Line::Cut {
            continue;
        }
        connections.spawn(carry(client, server, line.clone()));
    }
}

async fn carry(client: TcpStream, server: SocketAddr, line: watch::Receiver<Line>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    if client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut cut = line.clone();
    tokio::select! {
        _ = cut.wait_for(|line| *line == Line::Cut) => {}
        () = asks(from_client, to_server, line.clone()) => {}
        () = answers(from_server, to_client, line) => {}
    }
}

async fn moving(line: &mut watch::Receiver<Line>) -> Option<Line> {
    line.wait_for(|line| *line != Line::Stalled).await.ok().map(|line| *line)
}

async fn asks(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut line: watch::Receiver<Line>) {
    let mut chunk = vec![0_u8; 64 * 1024];
    loop {
        let Ok(n @ 1..) = from.read(&mut chunk).await else { return };
        if moving(&mut line).await.is_none() || to.write_all(&chunk[..n]).await.is_err() {
            return;
        }
    }
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut line: watch::Receiver<Line>) {
    let mut chunk = vec![0_u8; 64 * 1024];
    loop {
        let Ok(n @ 1..) = from.read(&mut chunk).await else { return };
        match moving(&mut line).await {
            None => return,
            Some(Line::Deaf) => continue,
            Some(Line::Slow(delay)) => tokio::time::sleep(delay).await,
            Some(Line::Open | Line::Cut | Line::Stalled) => {}
        }
        if to.write_all(&chunk[..n]).await.is_err() {
            return;
        }
    }
}
