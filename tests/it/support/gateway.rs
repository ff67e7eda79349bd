//! The gateway under test: the real binary on free ports, started, signalled, killed and restarted by a story.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use super::metrics::Metrics;
use super::sender::{self, Answer, Connection, Delivery};
use super::stores::Stores;
use super::upstream::Upstream;
use super::within;

/// A configuration in the making.
pub(crate) struct Setup {
    upstream: String,
    listen: String,
    stores: String,
    routes: String,
    rest: String,
    environment: Vec<(String, String)>,
    hosts: Option<PathBuf>,
    passed: Option<[std::net::TcpListener; 2]>,
    public: Option<SocketAddr>,
}

impl Setup {
    /// Its public listener is there, where somebody else expects it.
    pub(crate) fn at(mut self, public: SocketAddr) -> Self {
        self.public = Some(public);
        self
    }

    /// On these stores; without this, on the embedded ones.
    pub(crate) fn on(self, stores: &Stores) -> Self {
        self.stores_toml(&stores.toml())
    }

    /// `[hot]` and `[durable]` as the story writes them.
    pub(crate) fn stores_toml(mut self, toml: &str) -> Self {
        self.stores = toml.to_owned();
        self
    }

    /// `[[route]]` tables; without this, [`super::ORDERS`]. Called again, it adds.
    pub(crate) fn route(mut self, toml: &str) -> Self {
        self.routes.push_str(toml);
        self.routes.push('\n');
        self
    }

    /// Further lines of `[listen]`.
    pub(crate) fn listen(mut self, toml: &str) -> Self {
        self.listen.push_str(toml);
        self.listen.push('\n');
        self
    }

    /// Any other table.
    pub(crate) fn table(mut self, toml: &str) -> Self {
        self.rest.push_str(toml);
        self.rest.push('\n');
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The gateway, and nobody else, finds this file where the system's `/etc/hosts` is; `None` where the machine
    /// lets no process have its own mounts.
    pub(crate) fn resolving_names_by(mut self, hosts: &Path) -> Option<Self> {
        let allowed = Command::new("unshare")
            .args(["--map-root-user", "--mount", "mount", "--bind"])
            .args([hosts, Path::new("/etc/hosts")])
            .stderr(Stdio::null())
            .status();
        self.hosts = Some(hosts.to_owned());
        allowed.is_ok_and(|status| status.success()).then_some(self)
    }

    /// Its public and its admin socket are the story's, as they are systemd's with socket activation: they stay open
    /// while the gateway stops and starts.
    pub(crate) fn with_sockets_of_its_own(mut self) -> Self {
        let bound = |port| std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
        let public = self.public.map_or_else(super::free_port, |public| public.port());
        self.passed = Some([bound(public), bound(super::free_port())]);
        self
    }

    /// The addresses to configure.
    fn addresses(&self) -> [SocketAddr; 2] {
        match &self.passed {
            Some(sockets) => sockets.each_ref().map(|socket| socket.local_addr().unwrap()),
            None => {
                let free = || SocketAddr::from(([127, 0, 0, 1], super::free_port()));
                [self.public.unwrap_or_else(free), free()]
            }
        }
    }

    pub(crate) async fn start(mut self) -> Gateway {
        if self.routes.is_empty() {
            self.routes = super::ORDERS.to_owned();
        }
        let dir = tempfile::tempdir().unwrap();
        let [public, admin] = self.addresses();
        let config = dir.path().join("umavez.toml");
        std::fs::write(&config, self.toml(public, admin)).unwrap();
        let process = Process::spawn(&config, &self, &[]);
        let (public, admin) = process.listening().await;
        Gateway { process, setup: self, dir, config, public, admin }
    }

    fn toml(&self, public: SocketAddr, admin: SocketAddr) -> String {
        let Self { upstream, listen, stores, routes, rest, .. } = self;
        format!(
            "[listen]\npublic = \"{public}\"\nadmin = \"{admin}\"\n{listen}\n\
             {stores}\n{upstream}\n{rest}\n{routes}\n"
        )
    }
}

/// One running gateway. Dropped, it is killed.
pub(crate) struct Gateway {
    // First, so that it ends before its folder goes.
    process: Process,
    setup: Setup,
    dir: tempfile::TempDir,
    config: PathBuf,
    public: SocketAddr,
    admin: SocketAddr,
}

impl Gateway {
    pub(crate) fn in_front_of(upstream: &Upstream) -> Setup {
        Self::in_front_of_url(&upstream.url())
    }

    pub(crate) fn in_front_of_url(upstream: &str) -> Setup {
        Self::before(format!("[upstream]\nurl = \"{upstream}\""))
    }

    /// No default upstream: each route names its own.
    pub(crate) fn without_upstream() -> Setup {
        Self::before(String::new())
    }

    fn before(upstream: String) -> Setup {
        super::patience::begin();
        Setup {
            upstream,
            listen: String::new(),
            stores: String::new(),
            routes: String::new(),
            rest: String::new(),
            environment: Vec::new(),
            hosts: None,
            passed: None,
            public: None,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.public
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The folder of its configuration, and of its SQLite file.
    pub(crate) fn folder(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) async fn connect(&self) -> Connection {
        Connection::to(self.public).await
    }

    pub(crate) async fn send(&self, delivery: &Delivery) -> Answer {
        sender::send(self.public, delivery).await
    }

    /// The same delivery many times at once.
    pub(crate) async fn send_copies(&self, delivery: &Delivery, copies: usize) -> Vec<Answer> {
        sender::send_all(vec![(self.public, delivery.clone()); copies]).await
    }

    /// Sends in a task of its own: the story goes on meanwhile.
    pub(crate) fn sending(&self, delivery: &Delivery) -> tokio::task::JoinHandle<Answer> {
        let (address, delivery) = (self.public, delivery.clone());
        tokio::spawn(async move { sender::send(address, &delivery).await })
    }

    pub(crate) async fn ask_admin(&self, method: &str, target: &str) -> Answer {
        sender::send(self.admin, &Delivery::new(method, target)).await
    }

    pub(crate) async fn metrics(&self) -> Metrics {
        let answer = self.ask_admin("GET", "/metrics").await;
        assert_eq!(answer.status, 200);
        Metrics::parse(&answer.text())
    }

    /// Waits until a metric has this value, and gives the scrape.
    pub(crate) async fn until_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) -> Metrics {
        let mut last = 0.0;
        for _ in 0..600 {
            let metrics = self.metrics().await;
            last = metrics.value(name, labels);
            if (last - value).abs() < 0.5 {
                return metrics;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{name}{labels:?} is {last}, not {value}\n{}", self.logs());
    }

    /// Rewrites its configuration file; it notices only when it is told to.
    pub(crate) fn edit(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(&self.config).unwrap();
        assert!(text.contains(from), "{from} is not in {text}");
        std::fs::write(&self.config, text.replace(from, to)).unwrap();
    }

    /// Has it read its configuration again; what it said.
    pub(crate) async fn reload(&self) -> Answer {
        self.ask_admin("POST", "/reload").await
    }

    /// Everything it wrote to stderr so far, less what went before a restart.
    pub(crate) fn logs(&self) -> String {
        self.process.logs.text()
    }

    /// Its log lines as JSON; what isn't JSON fails the story.
    pub(crate) fn log_lines(&self) -> Vec<serde_json::Value> {
        let logs = self.logs();
        logs.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect()
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.child.id()
    }

    /// Resident memory in KiB: now, and the most it ever was.
    pub(crate) fn memory(&self) -> (u64, u64) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
        };
        (field("VmRSS"), field("VmHWM"))
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    /// kill -9, and the wait for its end.
    pub(crate) fn kill(&mut self) {
        self.process.end();
    }

    /// Waits for it to end by itself; its exit code, `None` where a signal ended it.
    pub(crate) async fn wait_exit(&mut self) -> Option<i32> {
        self.process.wait_exit().await
    }

    /// Starts it again, after it ended or by killing it: same ports, same configuration, same data.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        std::fs::write(&self.config, self.setup.toml(self.public, self.admin)).unwrap();
        self.process = Process::spawn(&self.config, &self.setup, &[]);
        let ports = self.process.listening().await;
        assert_eq!(ports, (self.public, self.admin));
    }
}

impl Gateway {
    /// A second process takes the sockets over; the first one's exit code once it has ended, `None` where a signal
    /// ended it.
    pub(crate) async fn take_over(&mut self) -> Option<i32> {
        let next = Process::spawn(&self.config, &self.setup, &["--takeover"]);
        assert_eq!(next.listening().await, (self.public, self.admin));
        std::mem::replace(&mut self.process, next).wait_exit().await
    }

    /// A second process that is to take over, and can't: its exit code, and what it wrote.
    pub(crate) async fn fail_to_take_over(&self) -> (Option<i32>, String) {
        self.fail(&["--takeover"]).await
    }

    /// The same of one that doesn't ask for the sockets.
    pub(crate) async fn fail_to_start(&self) -> (Option<i32>, String) {
        self.fail(&[]).await
    }

    async fn fail(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut next = Process::spawn(&self.config, &self.setup, arguments);
        let code = next.wait_exit().await;
        (code, next.logs.text())
    }
}

/// What one process wrote.
#[derive(Default)]
struct Logs {
    lines: Mutex<Vec<String>>,
    count: watch::Sender<usize>,
    ended: watch::Sender<bool>,
}

impl Logs {
    fn text(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }
}

struct Process {
    child: Child,
    logs: Arc<Logs>,
}

impl Process {
    fn spawn(config: &Path, setup: &Setup, arguments: &[&str]) -> Self {
        let mut command = match (&setup.hosts, &setup.passed) {
            (None, None) => Command::new("setpriv"),
            // As systemd passes sockets: from the third descriptor on, and told by two variables.
            (None, Some(_)) => {
                let mut command = Command::new("sh");
                let script = "exec 3<&0 4<&1 0</dev/null 1>/dev/null; \
                              LISTEN_FDS=2 LISTEN_PID=$$ exec setpriv \"$@\"";
                command.args(["-c", script, "sh"]);
                command
            }
            (Some(hosts), _) => {
                let mut command = Command::new("unshare");
                let script = "mount --bind \"$0\" /etc/hosts && exec setpriv \"$@\"";
                command.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(hosts);
                command
            }
        };
        // The kernel ends it when the test dies, however that dies.
        command
            .args(["--pdeathsig", "KILL", "--", env!("CARGO_BIN_EXE_umavez"), "run", "--config"])
            .arg(config)
            .args(arguments);
        command.envs(setup.environment.iter().map(|(name, value)| (name, value))).env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        if let Some([public, admin]) = &setup.passed {
            let pass = |socket: &std::net::TcpListener| {
                Stdio::from(std::os::fd::OwnedFd::from(socket.try_clone().unwrap()))
            };
            command.stdin(pass(public)).stdout(pass(admin));
        }
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let logs = Arc::new(Logs::default());
        let written = Arc::clone(&logs);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                // Who waits for the count looks at the lines under the count's lock: never hold both here.
                let count = {
                    let mut lines = written.lines.lock().unwrap();
                    lines.push(line);
                    lines.len()
                };
                written.count.send_replace(count);
            }
            written.ended.send_replace(true);
            written.count.send_modify(|_| ());
        });
        Self { child, logs }
    }

    async fn wait_exit(&mut self) -> Option<i32> {
        let mut ended = self.logs.ended.subscribe();
        within("the gateway's end", ended.wait_for(|ended| *ended)).await.unwrap();
        self.child.wait().unwrap().code()
    }

    /// The public and the admin listener's addresses, once both listen.
    async fn listening(&self) -> (SocketAddr, SocketAddr) {
        let mut count = self.logs.count.subscribe();
        let both = count.wait_for(|_| {
            *self.logs.ended.borrow() || (self.address("public").is_some() && self.address("admin").is_some())
        });
        let waited = tokio::time::timeout(super::PATIENCE, both).await.is_ok();
        match (self.address("public"), self.address("admin")) {
            (Some(public), Some(admin)) => (public, admin),
            (None | Some(_), None) | (None, Some(_)) => {
                let lines = self.logs.lines.lock().unwrap().join("\n");
                panic!("the gateway does not listen (ended: {waited}):\n{lines}")
            }
        }
    }

    fn address(&self, listener: &str) -> Option<SocketAddr> {
        let lines = self.logs.lines.lock().unwrap();
        lines.iter().find_map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let found = line["message"] == "listening" && line["listener"] == listener;
            found.then(|| line["address"].as_str()?.parse().ok()).flatten()
        })
    }

    fn end(&mut self) {
        // Both fail only for a process that has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
