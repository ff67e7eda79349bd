//! A Redis before 7.0: it refuses to set a key and return the old value where only a new key may be set. Scripts do
//! the same then, and nobody sees a difference.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::support::{Gateway, Pair, Reply, Stores, Upstream, durable_toml, hot_toml, order};

#[tokio::test]
async fn a_redis_older_than_seven_works_through_scripts() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let old = OldRedis::on_top_of(([127, 0, 0, 1], stores.redis().port()).into()).await;
    let toml = format!("{}{}", hot_toml(&old.url()), durable_toml(&stores.postgres_url()));
    let upstream = Upstream::deciding(|request, nth| match request.text().contains("fails") && nth == 1 {
        true => Reply::new(500, ""),
        false => Reply::new(201, "made"),
    })
    .await;
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).start().await;
    assert_eq!(gateway.send(&order("fails")).await.status, 500);
    assert_eq!(gateway.send(&order("fails")).await.verdict(), "first", "released in Redis too");
    for n in 0..10 {
        let copies = gateway.send_copies(&order(&format!("r{n}")), 10).await;
        assert!(copies.iter().all(|copy| (copy.status, copy.text().as_str()) == (201, "made")));
        let copy = gateway.send(&order(&format!("r{n}"))).await;
        assert_eq!((copy.text().as_str(), copy.verdict().as_str()), ("made", "duplicate"));
    }
    assert_eq!(upstream.received(), 12);
    assert!(old.refused.load(Ordering::Relaxed) > 0, "nothing was refused: this proves nothing");
    let metrics = gateway.metrics().await;
    assert!(metrics.value("umavez_duplicates_total", &[("layer", "hot")]) >= 10.0, "Redis is in use");
    assert_eq!(metrics.value("umavez_store_errors_total", &[("store", "hot")]), 0.0);
    for key in stores.redis().keys().await {
        assert_ne!(stores.redis().command(&["PTTL", &key]).await.integer(), -1, "{key} has no time to live");
    }
}

/// Stands before a Redis and makes `SET … NX … GET` the syntax error that it was.
struct OldRedis {
    address: SocketAddr,
    refused: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl OldRedis {
    async fn on_top_of(redis: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let refused = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&refused);
        let task = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = TcpStream::connect(redis).await.unwrap();
                let (mut answers, commands) = server.into_split();
                let (from_client, mut to_client) = client.into_split();
                tokio::spawn(pass_commands(from_client, commands, Arc::clone(&count)));
                tokio::spawn(async move { tokio::io::copy(&mut answers, &mut to_client).await.ok() });
            }
        });
        Self { address, refused, task }
    }

    fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

impl Drop for OldRedis {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Until one side is gone.
async fn pass_commands(from: OwnedReadHalf, mut to: OwnedWriteHalf, refused: Arc<AtomicUsize>) {
    let mut from = BufReader::new(from);
    while let Ok(mut words) = command(&mut from).await {
        let has = |name: &[u8]| words.iter().skip(3).any(|word| word.eq_ignore_ascii_case(name));
        if words[0].eq_ignore_ascii_case(b"SET") && has(b"NX") && has(b"GET") {
            refused.fetch_add(1, Ordering::Relaxed);
            // The real one says "syntax error" in its turn: a key can't be both new and old.
            words.push(b"XX".to_vec());
        }
        let mut frame = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            frame.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            frame.extend_from_slice(&word);
            frame.extend_from_slice(b"\r\n");
        }
        if to.write_all(&frame).await.is_err() {
            return;
        }
    }
}

async fn command(from: &mut BufReader<OwnedReadHalf>) -> io::Result<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    for _ in 0..number(from, b'*').await? {
        let mut word = vec![0; number(from, b'$').await? + 2];
        from.read_exact(&mut word).await?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    Ok(words)
}

async fn number(from: &mut BufReader<OwnedReadHalf>, kind: u8) -> io::Result<usize> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line).await?;
    let digits = line.strip_prefix(&[kind]).ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(std::str::from_utf8(digits).unwrap().trim_end().parse().unwrap())
}
