//! Redis servers of the tests' own, on free ports of the loopback: killed, restarted, stalled and flushed at
//! will, with TLS or ACL users, as a cluster of six or under three sentinels. A missing binary fails the test.
//! Commands go over a Unix socket and a few lines of RESP, so that a test never shares the client it tests.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::free_port;

/// The default user's where there is another one.
const PASSWORD: &str = "only-the-test-knows";

/// The rights of the documents' user of a Redis by itself, or of a cluster.
fn documented_rights(cluster: bool) -> &'static str {
    let lines = include_str!("../../../docs/operations.md").lines();
    let mut users = lines.filter_map(|line| line.strip_prefix("user umavez on >PASSWORD "));
    users.nth(usize::from(cluster)).expect("the documents say what a user may do")
}

/// What a server answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Nil,
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Array(Vec<Reply>),
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Nil => "(nil)".to_owned(),
            Self::Simple(text) | Self::Error(text) => text.clone(),
            Self::Integer(number) => number.to_string(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Array(items) => items.iter().map(Self::text).collect::<Vec<_>>().join(" "),
        }
    }

    pub(crate) fn integer(&self) -> i64 {
        let Self::Integer(number) = self else { panic!("not an integer: {self:?}") };
        *number
    }

    pub(crate) fn array(self) -> Vec<Reply> {
        let Self::Array(items) = self else { panic!("not an array: {self:?}") };
        items
    }
}

/// How to start a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Builder {
    extra: Vec<String>,
    tls: bool,
    user: Option<(String, String)>,
    sentinel_of: Option<u16>,
}

impl Builder {
    /// One more line of configuration, in words.
    pub(crate) fn with(mut self, words: &[&str]) -> Self {
        let (name, values) = words.split_first().expect("a configuration line has a name");
        self.extra.push(format!("--{name}"));
        self.extra.extend(values.iter().map(|value| (*value).to_owned()));
        self
    }

    /// TLS only, with a certificate for `localhost` and 127.0.0.1 of a CA of its own.
    pub(crate) fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// The default user needs a password that nobody knows; this one may do what the documents say that a gateway does.
    pub(crate) fn acl_user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
        self.with(&["requirepass", PASSWORD]).with_rights(name, password, false)
    }

    fn with_rights(self, name: &str, password: &str, cluster: bool) -> Self {
        let (password, rights) = (format!(">{password}"), documented_rights(cluster));
        let words = ["user", name, "on", &password].into_iter().chain(rights.split(' ')).collect::<Vec<_>>();
        self.with(&words)
    }

    /// Starts it, on another port if somebody took ours in between.
    pub(crate) async fn start(self) -> Redis {
        for _ in 0..10 {
            let mut redis = Redis {
                dir: TempDir::new().expect("a directory of its own"),
                port: free_port(),
                builder: self.clone(),
                child: None,
            };
            if self.tls {
                redis.write_certificate();
            }
            redis.spawn();
            if redis.comes_up().await {
                return redis;
            }
        }
        panic!("redis-server does not start");
    }
}

/// One server; dropped, it is killed and its directory removed.
pub(crate) struct Redis {
    dir: TempDir,
    port: u16,
    builder: Builder,
    child: Option<Child>,
}

impl Redis {
    /// A standalone server without persistence.
    pub(crate) async fn start() -> Self {
        Self::builder().start().await
    }

    pub(crate) fn builder() -> Builder {
        Builder::default()
    }

    /// A cluster of one node, which has every slot.
    pub(crate) async fn cluster_of_one() -> Self {
        // One that has met no other doesn't know its own address.
        let known = ["cluster-announce-ip", "127.0.0.1"];
        let redis = Self::builder().with(&["cluster-enabled", "yes"]).with(&known).start().await;
        redis.take_every_slot().await;
        redis
    }

    async fn take_every_slot(&self) {
        self.take_slots(0, 16383).await;
        eventually("the cluster is whole", async || {
            self.command(&["CLUSTER", "INFO"]).await.text().contains("cluster_state:ok")
        })
        .await;
    }

    /// One by one: ranges are known from 7.0 on.
    async fn take_slots(&self, from: u16, to: u16) {
        let slots: Vec<String> = (from..=to).map(|slot| slot.to_string()).collect();
        let add = ["CLUSTER", "ADDSLOTS"].into_iter();
        let words: Vec<&str> = add.chain(slots.iter().map(String::as_str)).collect();
        assert_eq!(self.command(&words).await.text(), "OK");
    }

    /// What users were refused, in the server's words.
    pub(crate) async fn acl_log(&self) -> String {
        self.command(&["ACL", "LOG"]).await.text()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Its URL, as an operator writes it.
    pub(crate) fn url(&self) -> String {
        let user = match &self.builder.user {
            Some((name, password)) => format!("{name}:{password}@"),
            None => String::new(),
        };
        let (scheme, host) = if self.builder.tls { ("rediss", "localhost") } else { ("redis", "127.0.0.1") };
        format!("{scheme}://{user}{host}:{}", self.port)
    }

    /// The CA that signed its certificate, PEM.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// One command, by the all-powerful default user.
    pub(crate) async fn command(&self, words: &[&str]) -> Reply {
        let bytes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.command_bytes(&bytes).await
    }

    /// The same, with words of any bytes.
    pub(crate) async fn command_bytes(&self, words: &[&[u8]]) -> Reply {
        let mut connection = self.connect().await.expect("redis accepts");
        connection.ask(words).await.expect("redis answers")
    }

    /// A connection that stays open, for MONITOR and SUBSCRIBE.
    pub(crate) async fn connect(&self) -> std::io::Result<Connection> {
        let socket = UnixStream::connect(self.dir.path().join("redis.sock")).await?;
        let mut connection = Connection { stream: BufStream::new(socket) };
        if self.builder.user.is_some() {
            connection.ask(&[b"AUTH", PASSWORD.as_bytes()]).await?;
        }
        Ok(connection)
    }

    /// Every key, in no order.
    pub(crate) async fn keys(&self) -> Vec<String> {
        self.command(&["KEYS", "*"]).await.array().iter().map(Reply::text).collect()
    }

    pub(crate) async fn flush(&self) {
        assert_eq!(self.command(&["FLUSHALL"]).await.text(), "OK");
    }

    /// kill -9.
    pub(crate) async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().await.expect("the server was ours");
        }
    }

    /// Starts it again on the same port, empty.
    pub(crate) async fn restart(&mut self) {
        self.kill().await;
        self.spawn();
        assert!(self.comes_up().await, "redis-server does not start again");
    }

    /// Starts another one on the same port: a cluster of one node.
    pub(crate) async fn restart_as_cluster(&mut self) {
        self.builder = self.builder.clone().with(&["cluster-enabled", "yes"]);
        self.restart().await;
        self.take_every_slot().await;
    }

    /// Connections stay open, nothing answers (SIGSTOP).
    pub(crate) async fn stall(&self) {
        self.signal("STOP").await;
    }

    /// Ends a stall.
    pub(crate) async fn resume(&self) {
        self.signal("CONT").await;
    }

    async fn signal(&self, name: &str) {
        let pid = self.child.as_ref().and_then(Child::id).expect("the server runs").to_string();
        let status =
            Command::new("kill").args([&format!("-{name}"), &pid]).status().await.expect("kill runs");
        assert!(status.success());
    }

    fn spawn(&mut self) {
        let port = self.port.to_string();
        let directory = self.dir.path().to_str().expect("a path in UTF-8");
        let mut command = Command::new("redis-server");
        if let Some(master) = self.builder.sentinel_of {
            let file = self.dir.path().join("sentinel.conf");
            std::fs::write(&file, sentinel_lines(master)).expect("its directory is writable");
            command.arg(file).arg("--sentinel");
        }
        command.args(["--dir", directory, "--unixsocket", "redis.sock", "--bind", "127.0.0.1"]);
        if self.builder.sentinel_of.is_none() {
            command.args(["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
        }
        if self.builder.tls {
            command.args(["--port", "0", "--tls-port", &port, "--tls-auth-clients", "no"]);
            command.args(["--tls-cert-file", "cert.pem", "--tls-key-file", "key.pem"]);
            command.args(["--tls-ca-cert-file", "ca.pem"]);
        } else {
            command.args(["--port", &port]);
        }
        command.args(&self.builder.extra).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        self.child = Some(command.spawn().expect("redis-server is installed"));
    }

    /// True once it answers PING; false if it exits.
    async fn comes_up(&mut self) -> bool {
        for _ in 0..1000 {
            if let Some(Ok(Some(_))) = self.child.as_mut().map(Child::try_wait) {
                return false;
            }
            if let Ok(mut connection) = self.connect().await
                && connection.ask(&[b"PING"]).await.is_ok_and(|reply| reply.text() == "PONG")
            {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    fn write_certificate(&self) {
        let mut issuer = rcgen::CertificateParams::new(Vec::<String>::new()).expect("no names");
        issuer.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        issuer.distinguished_name.push(rcgen::DnType::CommonName, "a test's own CA");
        let issuer_key = rcgen::KeyPair::generate().expect("a key");
        let issuer = rcgen::CertifiedIssuer::self_signed(issuer, issuer_key).expect("a CA");
        let key = rcgen::KeyPair::generate().expect("a key");
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let leaf = rcgen::CertificateParams::new(names).expect("two names").signed_by(&key, &issuer);
        let write = |name: &str, text: String| {
            std::fs::write(self.dir.path().join(name), text).expect("its directory is writable");
        };
        write("ca.pem", issuer.pem());
        write("cert.pem", leaf.expect("a certificate").pem());
        write("key.pem", key.serialize_pem());
    }
}

/// A plain connection to one server.
pub(crate) struct Connection {
    stream: BufStream<UnixStream>,
}

impl Connection {
    /// Sends one command and reads its reply.
    pub(crate) async fn ask(&mut self, words: &[&[u8]]) -> std::io::Result<Reply> {
        let mut frame = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            frame.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            frame.extend_from_slice(word);
            frame.extend_from_slice(b"\r\n");
        }
        self.stream.write_all(&frame).await?;
        self.stream.flush().await?;
        self.next().await
    }

    /// The next reply or pushed message.
    pub(crate) async fn next(&mut self) -> std::io::Result<Reply> {
        let mut line = Vec::new();
        if self.stream.read_until(b'\n', &mut line).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        let mut characters = line.chars();
        let kind = characters.next().unwrap_or(' ');
        let rest = characters.as_str();
        let number = || rest.parse::<i64>().expect("a number");
        Ok(match kind {
            '+' => Reply::Simple(rest.to_owned()),
            '-' => Reply::Error(rest.to_owned()),
            ':' => Reply::Integer(number()),
            '$' => match usize::try_from(number()) {
                Err(_) => Reply::Nil,
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes).await?;
                    bytes.truncate(length);
                    Reply::Bulk(bytes)
                }
            },
            '*' => {
                let mut items = Vec::new();
                for _ in 0..number() {
                    items.push(Box::pin(self.next()).await?);
                }
                Reply::Array(items)
            }
            other => panic!("not RESP2: {other:?} in {line:?}"),
        })
    }
}

/// Three masters with a replica each.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Redis>,
    user: &'static str,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::of(Redis::builder(), "").await
    }

    /// With a user who may do what the documents say that a gateway does in a cluster.
    pub(crate) async fn start_with_user() -> Self {
        Self::of(Redis::builder().with_rights("umavez", "secret", true), "umavez:secret@").await
    }

    async fn of(node: Builder, user: &'static str) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..6 {
            let node = node
                .clone()
                .with(&["cluster-enabled", "yes"])
                .with(&["cluster-node-timeout", "1000"])
                .with(&["cluster-config-file", "nodes.conf"]);
            nodes.push(node.start().await);
        }
        let cluster = Self { nodes, user };
        cluster.introduce().await;
        cluster
    }

    pub(crate) fn url(&self) -> String {
        let first = self.nodes.first().expect("six nodes").port();
        format!("redis-cluster://{}127.0.0.1:{first}", self.user)
    }

    /// What all masters hold.
    pub(crate) async fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for node in &self.nodes {
            if node.command(&["ROLE"]).await.text().starts_with("master") {
                keys.extend(node.keys().await);
            }
        }
        keys
    }

    async fn introduce(&self) {
        let masters = self.nodes.get(..3).expect("six nodes");
        let replicas = self.nodes.get(3..).expect("six nodes");
        for (master, (from, to)) in masters.iter().zip([(0, 5460), (5461, 10922), (10923, 16383)]) {
            master.take_slots(from, to).await;
        }
        for (epoch, node) in self.nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(epoch + 1).to_string()]).await;
            let first = self.nodes.first().expect("six nodes").port().to_string();
            node.command(&["CLUSTER", "MEET", "127.0.0.1", &first]).await;
        }
        for node in &self.nodes {
            eventually("the nodes know one another", async || {
                node.command(&["CLUSTER", "INFO"]).await.text().contains("cluster_known_nodes:6")
            })
            .await;
        }
        for (master, replica) in masters.iter().zip(replicas) {
            let id = master.command(&["CLUSTER", "MYID"]).await.text();
            eventually("the replica follows its master", async || {
                replica.command(&["CLUSTER", "REPLICATE", &id]).await.text() == "OK"
            })
            .await;
        }
        for node in &self.nodes {
            eventually("the cluster is whole", async || {
                node.command(&["CLUSTER", "INFO"]).await.text().contains("cluster_state:ok")
            })
            .await;
        }
    }
}

/// A master and its replica, watched by three sentinels under the name `umavez`.
pub(crate) struct Sentinels {
    pub(crate) master: Redis,
    pub(crate) replica: Redis,
    pub(crate) sentinels: Vec<Redis>,
}

impl Sentinels {
    pub(crate) async fn start() -> Self {
        let master = Redis::start().await;
        let port = master.port();
        let replica = Redis::builder().with(&["replicaof", "127.0.0.1", &port.to_string()]).start().await;
        eventually("the replica is in step", async || {
            replica.command(&["INFO", "replication"]).await.text().contains("master_link_status:up")
        })
        .await;
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(Builder { sentinel_of: Some(port), ..Builder::default() }.start().await);
        }
        for sentinel in &sentinels {
            eventually("the sentinels know the replica and one another", async || {
                let known = sentinel.command(&["SENTINEL", "MASTER", "umavez"]).await.text();
                known.contains("num-slaves 1 ") && known.contains("num-other-sentinels 2 ")
            })
            .await;
        }
        Self { master, replica, sentinels }
    }

    pub(crate) fn url(&self) -> String {
        let mut ports = self.sentinels.iter().map(Redis::port);
        let first = ports.next().expect("three sentinels");
        let others: Vec<String> = ports.map(|port| format!("node=127.0.0.1:{port}")).collect();
        format!("redis-sentinel://127.0.0.1:{first}?sentinelServiceName=umavez&{}", others.join("&"))
    }
}

fn sentinel_lines(master: u16) -> String {
    format!(
        "sentinel monitor umavez 127.0.0.1 {master} 2\nsentinel down-after-milliseconds umavez 300\n\
         sentinel failover-timeout umavez 2000\n"
    )
}

/// Waits for something that other processes bring about; ten seconds, for slow machines.
async fn eventually(what: &str, mut happens: impl AsyncFnMut() -> bool) {
    for _ in 0..500 {
        if happens().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("in ten seconds it did not happen: {what}");
}
