//! An authority of the story's own: Pebble, and the name server that it asks, which knows every name as 127.0.0.1.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustls::pki_types::CertificateDer;

use crate::support::{Delivery, Gateway, Metrics, eventually, free_port};
use crate::tls::caller::Caller;
use crate::tls::pki::{Authority, Folder};

pub(super) const NAME: &str = "hooks.example";

/// A customer's account and its key, as `external_account` names them.
pub(super) const CUSTOMER: (&str, &str) =
    ("kid-1", "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W");

/// One authority; dropped, it is gone.
pub(super) struct Pebble {
    folder: Folder,
    /// Vouches for its own HTTPS, not for what it signs.
    authority: Authority,
    ports: [u16; 4],
    /// Where it looks for proof.
    pub(super) proving: SocketAddr,
    settings: Settings,
    #[expect(dead_code, reason = "held, not read")]
    names: Process,
    server: Option<Process>,
}

#[derive(Clone, Copy)]
pub(super) struct Settings {
    /// How long its certificates are valid.
    pub(super) seconds: u64,
    /// Whether it serves customers only.
    pub(super) customers_only: bool,
    /// Of a hundred good nonces, how many it refuses.
    pub(super) nonces_refused: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Self { seconds: 90 * 86_400, customers_only: false, nonces_refused: 0 }
    }
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Pebble {
    pub(super) async fn start() -> Self {
        Self::of(Settings::default()).await
    }

    pub(super) async fn of(settings: Settings) -> Self {
        let mut pebble = Self::down(settings);
        pebble.come_up().await;
        pebble
    }

    /// Not up yet.
    pub(super) fn down(settings: Settings) -> Self {
        let (folder, authority) = (Folder::new(), Authority::new());
        folder.pair("pebble", &authority.issue(&["127.0.0.1"]));
        folder.put("roots.pem", &authority.pem);
        let ports = [0; 4].map(|_| free_port());
        let proving = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let local = |port: u16| format!("127.0.0.1:{port}");
        let names = started(
            Command::new("pebble-challtestsrv")
                .args(["-dns01", &local(ports[2]), "-management", &local(ports[3])])
                .args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", ""]),
            folder.path().join("names.log"),
        );
        Self { folder, authority, ports, proving, settings, names, server: None }
    }

    /// Starts it, or starts it again: it forgets everything.
    pub(super) async fn come_up(&mut self) {
        self.go_down();
        let [directory, management, names, _] = self.ports;
        let file = |name: &str| self.folder.path().join(name);
        let Settings { seconds, customers_only, nonces_refused } = self.settings;
        let mut config = serde_json::json!({
            "listenAddress": format!("127.0.0.1:{directory}"),
            "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": file("pebble.pem"),
            "privateKey": file("pebble.key"),
            "httpPort": 1,
            "tlsPort": self.proving.port(),
            "certificateValidityPeriod": seconds,
            "externalAccountBindingRequired": customers_only,
        });
        if customers_only {
            config["externalAccountMACKeys"] = serde_json::json!({ CUSTOMER.0: CUSTOMER.1 });
        }
        let config = self.folder.put("pebble.json", &serde_json::json!({ "pebble": config }).to_string());
        let server = started(
            Command::new("pebble")
                .arg("-config")
                .arg(config)
                .args(["-strict", "-dnsserver", &format!("127.0.0.1:{names}")])
                .env("PEBBLE_VA_NOSLEEP", "1")
                .env("PEBBLE_AUTHZREUSE", "0")
                .env("PEBBLE_WFE_NONCEREJECT", nonces_refused.to_string()),
            file("pebble.log"),
        );
        self.server = Some(server);
        eventually("Pebble answers", async || self.get(directory, "/dir").await.is_some()).await;
        eventually("Pebble tells its root", async || self.get(management, "/roots/0").await.is_some()).await;
    }

    pub(super) fn go_down(&mut self) {
        self.server = None;
    }

    /// `[public_tls.acme]` for these names, as a TOML list's content; what the story keeps is in `cache`.
    pub(super) fn table(&self, names: &str, cache: &std::path::Path) -> String {
        format!(
            "[public_tls.acme]\nnames = [{names}]\ncontact = \"ops@hooks.example\"\nterms_agreed = true\n\
             cache = \"{}\"\ndirectory = \"https://127.0.0.1:{}/dir\"\ndirectory_ca = \"{}\"\n",
            cache.display(),
            self.ports[0],
            self.folder.path().join("roots.pem").display(),
        )
    }

    /// A caller that trusts what it signs, and no other.
    pub(super) async fn caller(&self, name: &str) -> Caller {
        let root = self.get(self.ports[1], "/roots/0").await.expect("Pebble is up");
        Caller::trusting_pem(&String::from_utf8(root).unwrap(), name)
    }

    /// How many certificates it was asked for since it came up.
    pub(super) fn orders(&self) -> usize {
        self.log().lines().filter(|line| line.contains("POST /order-plz")).count()
    }

    pub(super) fn log(&self) -> String {
        // None where it never came up.
        std::fs::read_to_string(self.folder.path().join("pebble.log")).unwrap_or_default()
    }

    async fn get(&self, port: u16, path: &str) -> Option<Vec<u8>> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let caller = Caller::trusting(&self.authority, "127.0.0.1");
        let answer = caller.send(address, &Delivery::new("GET", path)).await.ok()?;
        (answer.status() == 200).then(|| answer.body().to_vec())
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.log());
        }
    }
}

fn started(command: &mut Command, log: PathBuf) -> Process {
    let log = File::create(log).unwrap();
    let mut bound = Command::new("setpriv");
    // The kernel ends it when the test dies, however that dies.
    bound.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    bound.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let child = bound.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn();
    let there = Command::new("which").arg(command.get_program()).stdout(Stdio::null()).status();
    assert!(there.is_ok_and(|there| there.success()), "no Pebble here: apt-get install pebble");
    Process(child.unwrap())
}

/// The certificate that this name is shown, once one is; it is of this authority.
pub(super) async fn shown(pebble: &Pebble, name: &str, address: SocketAddr) -> CertificateDer<'static> {
    let caller = pebble.caller(name).await;
    eventually("a certificate is shown", async || caller.connect(address).await.is_ok()).await;
    caller.shown(address).await
}

/// Where the gateway counts a name's certificate.
pub(super) async fn file_of(gateway: &Gateway, name: &str) -> String {
    let metrics = gateway.metrics().await;
    files(&metrics, name).into_iter().next().unwrap_or_else(|| panic!("{name}: {}", metrics.text()))
}

/// The same of every directory that was asked for it.
pub(super) fn files(metrics: &Metrics, name: &str) -> Vec<String> {
    let end = format!("/certificates/{name}.pem");
    metrics.text().split('"').filter(|word| word.ends_with(&end)).map(str::to_owned).collect()
}

/// What the gateway says went wrong, once it has said so this often.
pub(super) async fn errors(gateway: &Gateway, count: usize) -> Vec<serde_json::Value> {
    let errors =
        || gateway.log_lines().into_iter().filter(|line| line["level"] == "ERROR").collect::<Vec<_>>();
    eventually("the error is told", async || errors().len() >= count).await;
    errors()
}
