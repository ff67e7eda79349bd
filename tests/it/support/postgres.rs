//! A real Postgres of the test's own, on a free port and in a temporary folder: it may be killed, stopped,
//! stalled and restarted. And a PgBouncer in transaction mode to put in front of it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use super::free_port;

/// Who runs the servers where the tests run as root: neither server runs as root.
const SERVER_USER: &str = "postgres";
/// The role and the database that the tests use; a superuser of its own server.
const ROLE: &str = "umavez";
/// How often a server that starts is asked whether it is ready, and how many times at most.
const READY_POLL: Duration = Duration::from_millis(20);
const READY_POLLS_MAX: u32 = 1500;

/// One server. Stopped at once, and its folder removed, when dropped.
pub(crate) struct Postgres {
    dir: tempfile::TempDir,
    port: u16,
    server: Option<Child>,
}

impl Postgres {
    /// Starts a server with an empty database. Blocks until it accepts connections.
    pub(crate) fn start() -> Self {
        let dir = server_folder("umavez-postgres");
        run(Command::new("cp").arg("-a").arg(template()).arg(dir.path().join("data")));
        let mut postgres = Self { dir, port: free_port(), server: None };
        // Another port where somebody took this one in between.
        for _ in 0..10 {
            if postgres.comes_up() {
                return postgres;
            }
            postgres.port = free_port();
        }
        panic!("postgres did not start:\n{}", postgres.log())
    }

    /// A server that follows this one: it has everything, and takes no writes. Blocks until it streams.
    pub(crate) fn replica(&self) -> Self {
        let dir = server_folder("umavez-postgres-replica");
        let mut backup = as_server_user(&binary("pg_basebackup"));
        backup.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", ROLE, "-R", "-c", "fast", "-D"]);
        run(backup.arg(dir.path().join("data")));
        let mut replica = Self { dir, port: free_port(), server: None };
        assert!(replica.comes_up(), "the replica did not start:\n{}", replica.log());
        for _ in 0..READY_POLLS_MAX {
            if self.sql("select count(*) from pg_stat_replication where state = 'streaming'") == "1" {
                return replica;
            }
            std::thread::sleep(READY_POLL);
        }
        panic!("the replica does not stream:\n{}", replica.log())
    }

    /// A commit counts once a replica has it.
    pub(crate) fn wait_for_replica(&self) {
        self.sql("alter system set synchronous_standby_names = '*'");
        self.sql("select pg_reload_conf()");
        for _ in 0..READY_POLLS_MAX {
            if self.sql("select count(*) from pg_stat_replication where sync_state = 'sync'") == "1" {
                return;
            }
            std::thread::sleep(READY_POLL);
        }
        panic!("no replica is synchronous:\n{}", self.log())
    }

    /// Makes a replica a server of its own, as a fail-over does.
    pub(crate) fn promote(&self) {
        assert_eq!(self.sql("select pg_promote()"), "t", "{}", self.log());
    }

    /// What the gateway's configuration takes.
    pub(crate) fn url(&self) -> String {
        format!("postgres://{ROLE}@127.0.0.1:{}/postgres", self.port)
    }

    /// The same database for another role.
    pub(crate) fn url_as(&self, role: &str) -> String {
        format!("postgres://{role}@127.0.0.1:{}/postgres", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// SIGKILL to the whole server: what was not flushed is gone.
    pub(crate) fn kill(&mut self) {
        // SIGQUIT is the server's "immediate": it kills its own children and flushes nothing.
        self.end("QUIT");
    }

    /// An orderly stop: open connections are broken off.
    pub(crate) fn stop(&mut self) {
        self.end("INT");
    }

    /// Starts the server again on the same port and data, stopping it first where it runs.
    pub(crate) fn restart(&mut self) {
        assert!(self.comes_up(), "postgres did not start:\n{}", self.log());
    }

    fn comes_up(&mut self) -> bool {
        self.stop();
        let data = self.dir.path().join("data");
        let mut command = as_server_user(&binary("postgres"));
        command.arg("-D").arg(&data).arg("-p").arg(self.port.to_string());
        for setting in [
            "listen_addresses=127.0.0.1",
            "fsync=on",
            "shared_buffers=32MB",
            "max_connections=60",
            "autovacuum=on",
        ] {
            command.arg("-c").arg(setting);
        }
        command.arg("-c").arg(format!("unix_socket_directories={}", self.dir.path().display()));
        self.server = Some(spawn_tied(command, &self.dir.path().join("log")));
        for _ in 0..READY_POLLS_MAX {
            // Looked at first: another server on this port may be ready.
            if self.server.as_mut().is_some_and(|server| matches!(server.try_wait(), Ok(Some(_)))) {
                return false;
            }
            let ready = Command::new(binary("pg_isready"))
                .args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])
                .status();
            if ready.is_ok_and(|status| status.success()) {
                return true;
            }
            std::thread::sleep(READY_POLL);
        }
        false
    }

    /// Every process of the server stops where it is: connections stay open and nothing answers.
    pub(crate) fn stall(&self) {
        self.signal_all("STOP");
    }

    /// Ends a stall.
    pub(crate) fn resume(&self) {
        self.signal_all("CONT");
    }

    /// Runs SQL as the superuser and gives what it printed, one row a line, columns split by `|`.
    pub(crate) fn sql(&self, sql: &str) -> String {
        let output = Command::new(binary("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &self.url(), "-c", sql])
            .output()
            .expect("psql is installed");
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// A session that runs this SQL and then stays, with whatever it has locked, until it is dropped.
    pub(crate) fn session(&self, sql: &str) -> Session {
        use std::io::{BufRead as _, BufReader, Write as _};
        let mut psql = Command::new(binary("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &self.url()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("psql is installed");
        let mut input = psql.stdin.take().expect("it is a pipe");
        writeln!(input, "{sql};\n\\echo ran").expect("psql reads");
        let mut lines = BufReader::new(psql.stdout.take().expect("it is a pipe")).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line == "ran")), "{sql}");
        Session { psql, _input: input }
    }

    /// What the server wrote to its log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn end(&mut self, signal: &str) {
        let Some(mut server) = self.server.take() else { return };
        self.signal(server.id(), signal);
        self.signal(server.id(), "CONT");
        server.wait().expect("the server can be waited for");
    }

    fn signal(&self, pid: u32, signal: &str) {
        // A server that died by itself is no failure here: the caller waits for it, or starts it again.
        drop(Command::new("kill").args(["-s", signal, &pid.to_string()]).stderr(Stdio::null()).status());
    }

    fn signal_all(&self, signal: &str) {
        let Some(server) = &self.server else { return };
        let children = Command::new("ps")
            .args(["-o", "pid=", "--ppid", &server.id().to_string()])
            .output()
            .expect("ps is installed");
        self.signal(server.id(), signal);
        for pid in String::from_utf8_lossy(&children.stdout).split_whitespace() {
            self.signal(pid.parse().expect("ps prints numbers"), signal);
        }
    }
}

/// A session of [`Postgres::session`].
pub(crate) struct Session {
    psql: Child,
    _input: std::process::ChildStdin,
}

impl Drop for Session {
    fn drop(&mut self) {
        // Both fail only for a process that has ended already.
        drop(self.psql.kill());
        drop(self.psql.wait());
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.resume();
        self.kill();
    }
}

/// PgBouncer in transaction mode with a pool of 2 and without support for prepared statements.
pub(crate) struct PgBouncer {
    dir: tempfile::TempDir,
    port: u16,
    server: Child,
}

impl PgBouncer {
    pub(crate) fn in_front_of(postgres: &Postgres) -> Self {
        let dir = server_folder("umavez-pgbouncer");
        let port = free_port();
        let config = dir.path().join("pgbouncer.ini");
        std::fs::write(&config, pgbouncer_ini(port, postgres)).expect("the folder is there");
        let mut command = as_server_user(Path::new("/usr/sbin/pgbouncer"));
        command.arg(&config);
        let log = dir.path().join("log");
        let pooler = Self { server: spawn_tied(command, &log), dir, port };
        for _ in 0..READY_POLLS_MAX {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return pooler;
            }
            std::thread::sleep(READY_POLL);
        }
        panic!("pgbouncer did not start:\n{}", std::fs::read_to_string(log).unwrap_or_default());
    }

    /// From now on it leads to another server, as an operator does at a fail-over.
    pub(crate) fn lead_to(&self, postgres: &Postgres) {
        let config = self.dir.path().join("pgbouncer.ini");
        std::fs::write(config, pgbouncer_ini(self.port, postgres)).expect("the folder is there");
        run(Command::new("kill").args(["-s", "HUP", &self.server.id().to_string()]));
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://{ROLE}@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        // Both fail only for a process that has ended already.
        drop(self.server.kill());
        drop(self.server.wait());
    }
}

fn pgbouncer_ini(port: u16, postgres: &Postgres) -> String {
    format!(
        "[databases]\npostgres = host=127.0.0.1 port={} dbname=postgres user={ROLE}\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = any\npool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 200\n\
         server_login_retry = 1\n",
        postgres.port()
    )
}

/// An initialised data folder, made once and copied for every server.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let ready = Path::new(env!("CARGO_TARGET_TMPDIR")).join("postgres-template");
        if !ready.join("PG_VERSION").exists() {
            let dir = server_folder("umavez-initdb");
            let data = dir.path().join("data");
            let mut initdb = as_server_user(&binary("initdb"));
            initdb
                .args(["-U", ROLE, "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C", "-D"])
                .arg(&data);
            run(initdb.stdout(Stdio::null()));
            let copied = ready.with_extension(std::process::id().to_string());
            run(Command::new("cp").arg("-a").arg(&data).arg(&copied));
            if std::fs::rename(&copied, &ready).is_err() {
                // Another test process was faster; its template is as good.
                std::fs::remove_dir_all(&copied).expect("this process made it");
            }
        }
        ready
    })
}

/// A temporary folder that the server's user owns.
fn server_folder(prefix: &str) -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix(prefix).tempdir().expect("the temporary folder is writable");
    if running_as_root() {
        run(Command::new("chown").arg(SERVER_USER).arg(dir.path()));
    }
    dir
}

fn as_server_user(program: &Path) -> Command {
    // The kernel ends the server when the test process dies, however it dies.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "INT"]);
    if running_as_root() {
        command.args(["--reuid", SERVER_USER, "--regid", SERVER_USER, "--clear-groups"]);
    }
    command.arg("--").arg(program).current_dir("/");
    command
}

/// Spawns from a thread that lives as long as the process: the kernel's "parent died" means the parent thread.
fn spawn_tied(mut command: Command, log: &Path) -> Child {
    type Job = (Command, mpsc::Sender<std::io::Result<Child>>);
    static SPAWNER: OnceLock<std::sync::Mutex<mpsc::Sender<Job>>> = OnceLock::new();
    let file = std::fs::OpenOptions::new().create(true).append(true).open(log).expect("the folder is there");
    command.stdin(Stdio::null()).stdout(file.try_clone().expect("a file can be shared")).stderr(file);
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, queue) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in queue {
                drop(answer.send(command.spawn()));
            }
        });
        std::sync::Mutex::new(jobs)
    });
    let (answer, child) = mpsc::channel();
    spawner.lock().unwrap().send((command, answer)).expect("the spawner lives as long as the process");
    child.recv().expect("the spawner answers").expect("setpriv is installed")
}

fn binary(name: &str) -> PathBuf {
    let mut versions: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path().join("bin"))).collect())
        .unwrap_or_default();
    versions.sort();
    versions.pop().map_or_else(|| PathBuf::from(name), |bin| bin.join(name))
}

fn running_as_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}
